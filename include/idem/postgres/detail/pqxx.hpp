// SPDX-License-Identifier: MIT
#pragma once

// The one header that knows which libpqxx this is: 6.4, 7.x or 8.x.

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <pqxx/pqxx>
#include <pqxx/version>

namespace idem::postgres::detail {

/// A parameter as the server's text form; nullopt is NULL.
using TextParameter = std::optional<std::string>;

/// What a libpqxx exception says, in the same words for every version.
struct DriverError {
  std::string sqlstate;  ///< empty when the server gave none
  std::string message;   ///< its first line: the rest carries the row's values
  bool connection_lost = false;
};

[[nodiscard]] inline std::string first_line(std::string_view text) {
  if (text.substr(0, 6) == "ERROR:" || text.substr(0, 6) == "FATAL:") text.remove_prefix(6);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return std::string{text.substr(0, text.find('\n'))};
}

/// The first line; of a data exception (class 22) or a syntax error without what it quotes: there it is the value.
[[nodiscard]] inline std::string safe_line(std::string_view sqlstate, std::string_view text) {
  std::string line = first_line(text);
  const auto from = line.find('"');
  const bool quotes_values = sqlstate.substr(0, 2) == "22" || sqlstate == "42601";
  if (!quotes_values || from == std::string::npos) return line;
  const auto to = line.rfind('"');
  return line.substr(0, from) + "\"...\"" + (to == from ? std::string{} : line.substr(to + 1));
}

/// Describes the exception that is being handled; nullopt when it is not the driver's.
[[nodiscard]] inline std::optional<DriverError> current_driver_error() {
  const auto with = [](std::string_view state, const std::exception& e) {
    return DriverError{std::string{state}, first_line(e.what())};
  };
  try {
    throw;
  } catch (const pqxx::in_doubt_error& e) {
    return with("40003", e);
  } catch (const pqxx::too_many_connections& e) {  // also a broken_connection: first
    return with("53300", e);
  } catch (const pqxx::statement_completion_unknown& e) {
    return with("40003", e);
  } catch (const pqxx::serialization_failure& e) {  // no sql_error, and without a state, before 7.1
    return with("40001", e);
  } catch (const pqxx::deadlock_detected& e) {
    return with("40P01", e);
  } catch (const pqxx::transaction_rollback& e) {
    return with("40000", e);
  } catch (const pqxx::insufficient_privilege& e) {  // without a state before 7.10.4
    return with("42501", e);
#if PQXX_VERSION_MAJOR >= 7
  } catch (const pqxx::protocol_violation& e) {  // a broken_connection in 7, an sql_error in 8
    return with("08P01", e);
#endif
  } catch (const pqxx::broken_connection& e) {
    return DriverError{{}, first_line(e.what()), true};
  } catch (const pqxx::sql_error& e) {
    // An error that libpq made itself has no state: the answer never came.
    const std::string state{e.sqlstate()};
    return DriverError{state, safe_line(state, e.what()), state.empty()};
  } catch (...) {
    return std::nullopt;
  }
}

#if PQXX_VERSION_MAJOR < 7

/// Parameters as the driver takes them; they refer to the strings.
[[nodiscard]] inline std::vector<const char*> texts_of(const std::vector<TextParameter>& parameters) {
  std::vector<const char*> texts;
  texts.reserve(parameters.size());
  for (const auto& parameter : parameters) texts.push_back(parameter ? parameter->c_str() : nullptr);
  return texts;
}

#else

[[nodiscard]] inline pqxx::params texts_of(const std::vector<TextParameter>& parameters) {
  pqxx::params texts;
  texts.reserve(parameters.size());
  for (const auto& parameter : parameters) texts.append(parameter);
  return texts;
}

#endif

/// Runs `sql` with parameters in text form.
///
/// On libpqxx 6 a subtransaction sends its SAVEPOINT only with the first statement without parameters;
/// without it, what an abandoned subtransaction did would be committed. So it is started here.
inline pqxx::result exec_with(pqxx::transaction_base& tx, const std::string& sql,
                              const std::vector<TextParameter>& parameters) {
#if PQXX_VERSION_MAJOR < 7
#include <pqxx/internal/ignore-deprecated-pre.hxx>
  if (dynamic_cast<pqxx::subtransaction*>(&tx) != nullptr) static_cast<void>(tx.prepared(std::string{}));
#include <pqxx/internal/ignore-deprecated-post.hxx>
  const auto texts = texts_of(parameters);
  return tx.exec_params(sql, pqxx::prepare::make_dynamic_params(texts));
#elif PQXX_VERSION_MAJOR > 7 || PQXX_VERSION_MINOR >= 10
  return tx.exec(sql, texts_of(parameters));
#else
  return tx.exec_params(sql, texts_of(parameters));
#endif
}

/// As above, for a statement that the session knows by `name`.
inline pqxx::result exec_prepared(pqxx::transaction_base& tx, const std::string& name,
                                  const std::vector<TextParameter>& parameters) {
#if PQXX_VERSION_MAJOR < 7
  const auto texts = texts_of(parameters);
  return tx.exec_prepared(name, pqxx::prepare::make_dynamic_params(texts));
#elif PQXX_VERSION_MAJOR > 7 || PQXX_VERSION_MINOR >= 10
  return tx.exec(pqxx::prepped{name}, texts_of(parameters));
#else
  return tx.exec_prepared(name, texts_of(parameters));
#endif
}

/// Prepares one statement; the server refuses a text that holds several.
inline void prepare_one(pqxx::connection& connection, const std::string& name, const std::string& sql) {
  connection.prepare(name, sql);
#if PQXX_VERSION_MAJOR < 7
  connection.prepare_now(name);  // 6 would wait for its own call of it
#endif
}

/// Makes the connection speak UTF8, and keeps libpqxx 6 from reconnecting behind our back mid-transaction.
inline void tame(pqxx::connection& connection) {
#if PQXX_VERSION_MAJOR < 7
#include <pqxx/internal/ignore-deprecated-pre.hxx>
  connection.inhibit_reactivation(true);
#include <pqxx/internal/ignore-deprecated-post.hxx>
#endif
  connection.set_client_encoding("UTF8");
}

#if PQXX_VERSION_MAJOR < 7

using DriverName = pqxx::internal::namedclass;

#else

/// Stands for the virtual base that libpqxx 6 wants named by the most derived class.
struct DriverName {
  explicit DriverName(const std::string&) {}
};

#endif

/// A pqxx::dbtransaction whose first and last message are ours.
///
/// A final class derives from it, names DriverName("…") first, and calls `close_driver()` in its destructor
/// (here it would reach virtual functions of a destroyed object).
class DriverTransaction : public virtual DriverName, public pqxx::dbtransaction {
 protected:
  explicit DriverTransaction(pqxx::connection& connection)
      : DriverName{"transaction"}, pqxx::dbtransaction{connection} {
#if PQXX_VERSION_MAJOR >= 7
    register_transaction();
#endif
  }

  /// Sends the message that opens the transaction.
  pqxx::result open_with(const std::string& message) {
#if PQXX_VERSION_MAJOR < 7
    opening_ = &message;
    Begin();
    return std::exchange(opened_, pqxx::result{});
#else
    return send(message);
#endif
  }

  /// Sends a message as it is, whatever libpqxx believes of the transaction.
  pqxx::result send(const std::string& message) {
#if PQXX_VERSION_MAJOR < 8
    return direct_exec(message.c_str());
#else
    return direct_exec(message, pqxx::sl::current());
#endif
  }

  void close_driver() noexcept {
#if PQXX_VERSION_MAJOR < 7
    End();
#else
    close();
#endif
  }

  /// commit() was called. Throws unless the commit is confirmed.
  virtual void on_commit() = 0;
  /// abort() was called, or the transaction is closed without a commit.
  virtual void on_abort() = 0;

 private:
#if PQXX_VERSION_MAJOR < 7
  void do_begin() final { opened_ = direct_exec(opening_->c_str()); }
  // The default would abort behind our back on an error, and what follows would autocommit.
  pqxx::result do_exec(const char query[]) final { return direct_exec(query); }
  void do_commit() final { on_commit(); }
  void do_abort() final { on_abort(); }

  const std::string* opening_ = nullptr;
  pqxx::result opened_;
#elif PQXX_VERSION_MAJOR < 8
  void do_commit() final { on_commit(); }
  void do_abort() final { on_abort(); }
#else
  void do_commit(pqxx::sl) final { on_commit(); }
  void do_abort(pqxx::sl) final { on_abort(); }
#endif
};

}  // namespace idem::postgres::detail
