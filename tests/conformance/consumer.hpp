// SPDX-License-Identifier: MIT
#pragma once

// All behaviours that a consumer has on every store.

#include "conformance/bench.hpp"
#include "conformance/concurrency.hpp"
#include "conformance/failures.hpp"
#include "conformance/fingerprints.hpp"
#include "conformance/keys.hpp"
