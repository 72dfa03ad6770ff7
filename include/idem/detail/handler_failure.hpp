// SPDX-License-Identifier: MIT
#pragma once

#include <exception>
#include <string>
#include <utility>

#include <idem/error.hpp>
#include <idem/outcome.hpp>
#include <idem/store.hpp>

namespace idem::detail {

[[nodiscard]] inline Failed precondition_failed(std::string what) {
  return {.failure = {ErrorClass::transient, std::string{code::precondition_failed}, std::move(what)},
          .retry = Retry::by_redelivery};
}

/// Turns what a handler threw into a `Failed`, for the exceptions the core knows; a store asks this last.
///
/// Only to be called while an exception is being handled. Throws: ConfigurationError — that is what was
/// thrown.
[[nodiscard]] inline Failed handler_failure() {
  try {
    throw;
  } catch (const ConfigurationError&) {
    throw;
  } catch (const TransientError& e) {
    const ErrorClass kind = e.retry_after() ? ErrorClass::throttled : ErrorClass::transient;
    return {.failure = {kind, {}, e.what()}, .retry_after = e.retry_after()};
  } catch (const PermanentError& e) {
    return {.failure = {ErrorClass::permanent, {}, e.what()}};
  } catch (const PreconditionFailed& e) {
    return precondition_failed(e.what());
  } catch (const std::exception& e) {
    return {.failure = {ErrorClass::transient, {}, e.what()}};
  } catch (...) {
    return {.failure = {ErrorClass::transient, {}, "the handler threw something that is no std::exception"}};
  }
}

}  // namespace idem::detail
