// SPDX-License-Identifier: MIT
#pragma once

// The core, whole, and the store for unit tests. No database: that is <idem/postgres.hpp>.

#include <idem/codec.hpp>
#include <idem/consumer.hpp>
#include <idem/dead_letter.hpp>
#include <idem/duration.hpp>
#include <idem/error.hpp>
#include <idem/event.hpp>
#include <idem/fingerprint.hpp>
#include <idem/handler.hpp>
#include <idem/keep_visible.hpp>
#include <idem/key.hpp>
#include <idem/lease.hpp>
#include <idem/memory/dead_letters.hpp>
#include <idem/memory/store.hpp>
#include <idem/observer.hpp>
#include <idem/options.hpp>
#include <idem/outbox.hpp>
#include <idem/outcome.hpp>
#include <idem/published.hpp>
#include <idem/retry.hpp>
#include <idem/runtime.hpp>
#include <idem/store.hpp>
#include <idem/version.hpp>
