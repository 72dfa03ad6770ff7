// SPDX-License-Identifier: MIT
#pragma once

#include <idem/retry/backoff.hpp>
#include <idem/retry/budget.hpp>
#include <idem/retry/decision.hpp>
#include <idem/retry/jitter.hpp>
#include <idem/retry/limit.hpp>
#include <idem/retry/loop.hpp>
#include <idem/retry/policy.hpp>
#include <idem/retry/redeliver.hpp>
#include <idem/retry/sample.hpp>
#include <idem/retry/simulate.hpp>
