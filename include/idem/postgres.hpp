// SPDX-License-Identifier: MIT
#pragma once

// The PostgreSQL back end, whole.

#include <idem/postgres/claim.hpp>
#include <idem/postgres/exec.hpp>
#include <idem/postgres/options.hpp>
#include <idem/postgres/schema.hpp>
#include <idem/postgres/sqlstate.hpp>
#include <idem/postgres/store.hpp>
#include <idem/postgres/transaction.hpp>
