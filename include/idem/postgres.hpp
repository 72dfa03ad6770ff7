// SPDX-License-Identifier: MIT
#pragma once

// The PostgreSQL back end, whole.

#include <idem/postgres/claim.hpp>
#include <idem/postgres/dead_letter.hpp>
#include <idem/postgres/dead_letters.hpp>
#include <idem/postgres/exec.hpp>
#include <idem/postgres/options.hpp>
#include <idem/postgres/outbox.hpp>
#include <idem/postgres/outbox_desk.hpp>
#include <idem/postgres/relay.hpp>
#include <idem/postgres/relay_options.hpp>
#include <idem/postgres/retention.hpp>
#include <idem/postgres/roles.hpp>
#include <idem/postgres/schema.hpp>
#include <idem/postgres/sqlstate.hpp>
#include <idem/postgres/stats.hpp>
#include <idem/postgres/store.hpp>
#include <idem/postgres/transaction.hpp>
