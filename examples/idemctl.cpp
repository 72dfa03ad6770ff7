// SPDX-License-Identifier: MIT
//
// An operator's program: what is in the tables, what is stuck, and the way out. `idemctl --help` says it all.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <idem/idem.hpp>
#include <idem/postgres.hpp>

#include "idemctl/dead.hpp"
#include "idemctl/desk.hpp"
#include "idemctl/keys.hpp"
#include "idemctl/options.hpp"
#include "idemctl/outbox.hpp"
#include "idemctl/tables.hpp"

namespace idemctl {

struct Command {
  std::string_view name;
  std::string_view operands;  ///< as the usage spells them; empty: it takes none
  std::string_view text;
  std::vector<std::string_view> options;  ///< that it takes; another one is refused, never passed over
  int (*run)(Desk&);
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      {"schema",
       "",
       "print the SQL of the tables, or of the roles, for a DBA",
       {"--roles", "--dsn", "--schema"},
       schema},
      {"check",
       "",
       "can the tables be reached, and are they up to date?",
       {"--json", "--dsn", "--schema"},
       check},
      {"stats", "", "numbers to watch", {"--prometheus", "--json", "--dsn", "--schema"}, stats},
      {"dead list",
       "",
       "dead letters, the oldest first",
       {"--tenant", "--consumer", "--event", "--kind", "--code", "--state", "--limit", "--json", "--dsn",
        "--schema"},
       dead_list},
      {"dead groups",
       "",
       "what they died of, the most frequent first",
       {"--tenant", "--consumer", "--event", "--kind", "--code", "--state", "--limit", "--json", "--dsn",
        "--schema"},
       dead_groups},
      {"dead show",
       "ID",
       "one of them, open or closed; its payload only if asked for",
       {"--payload", "--json", "--dsn", "--schema"},
       dead_show},
      {"dead discard",
       "[ID...] --reason TEXT",
       "close these, or those that the filter names; the reason is kept with them",
       {"--reason", "--tenant", "--consumer", "--event", "--kind", "--code", "--all", "--dry-run", "--json",
        "--dsn", "--schema"},
       dead_discard},
      {"dead redrive",
       "--dry-run",
       "what a redrive would take; DeadLetters::redrive in your service does it, for the handler is there",
       {"--tenant", "--consumer", "--event", "--kind", "--code", "--limit", "--dry-run", "--json", "--dsn",
        "--schema"},
       dead_redrive},
      {"outbox list",
       "",
       "messages that are not sent, the oldest first; never what they say",
       {"--tenant", "--topic", "--key", "--id", "--state", "--limit", "--json", "--dsn", "--schema"},
       outbox_list},
      {"outbox retry",
       "",
       "make dead messages wait again, and parked ones due now (a dry run counts a million of each at the most)",
       {"--tenant", "--topic", "--key", "--id", "--state", "--all", "--dry-run", "--json", "--dsn",
        "--schema"},
       outbox_retry},
      {"explain",
       "--consumer NAME --event ID",
       "what the tables know of an event, in plain words",
       {"--tenant", "--consumer", "--event", "--json", "--dsn", "--schema"},
       explain},
      {"forget",
       "--consumer NAME --event ID --reason TEXT",
       "forget an event: its next delivery runs the handler again; the reason is printed, and kept nowhere else",
       {"--tenant", "--consumer", "--event", "--reason", "--dry-run", "--json", "--dsn", "--schema"},
       forget},
      {"purge",
       "",
       "remove ended windows, and messages sent and letters closed 7 days ago; with --consumer and --older-than: "
       "that consumer's keys of that age, of all tenants and whatever their window",
       {"--consumer", "--older-than", "--batch", "--dry-run", "--json", "--dsn", "--schema"},
       purge}};
  return all;
}

constexpr std::string_view exit_codes = R"(Ends with
  0  done; a list or a filter may have matched nothing
  1  there is nothing of that name: the event, the key, the dead letter
  2  wrong use: nothing was done
  3  the server cannot be reached, or the schema, a right or the login is missing
  4  it was lost on the way, or is busy: try again
  5  refused, the text says why: nothing was done
)";

void print_usage() {
  std::cout << "idemctl COMMAND [OPTION...]\n\n";
  for (const auto& command : commands())
    std::cout << "  " << command.name << (command.operands.empty() ? "" : " ") << command.operands
              << "\n      " << command.text << '\n';
  std::cout << "\nidemctl COMMAND --help tells the command's options.\n\n" << exit_codes;
}

void print_usage(const Command& command) {
  std::cout << "idemctl " << command.name << (command.operands.empty() ? "" : " ") << command.operands
            << " [OPTION...]\n  " << command.text << "\n\n";
  for (const auto& option : all_options) {
    if (std::find(command.options.begin(), command.options.end(), option.name) == command.options.end())
      continue;
    std::string spelled{option.name};
    if (!option.value.empty()) spelled += ' ' + std::string{option.value};
    spelled.resize((std::max<std::size_t>)(spelled.size(), 18), ' ');
    std::cout << "  " << spelled << "  " << option.text << '\n';
  }
  std::cout << '\n' << exit_codes;
}

/// The command that the words name, with nothing that it does not take.
const Command& command_of(const Options& options) {
  const auto& words = options.words();
  if (words.empty()) throw UsageError{"no command"};
  const bool two = words.size() > 1 && (words[0] == "dead" || words[0] == "outbox");
  const std::string name = two ? words[0] + ' ' + words[1] : words[0];
  const auto command = std::find_if(commands().begin(), commands().end(),
                                    [&](const Command& one) { return one.name == name; });
  if (command == commands().end()) throw UsageError{"unknown command " + idem::detail::escaped(name, 80)};
  for (const auto& [option, value] : options.given())
    if (option != "--help" &&
        std::find(command->options.begin(), command->options.end(), option) == command->options.end())
      throw UsageError{name + " takes no " + option};
  const bool takes_words = command->run == dead_show || command->run == dead_discard;
  if (!takes_words && words.size() > (two ? 2U : 1U))
    throw UsageError{name + " takes no " + idem::detail::escaped(words[two ? 2 : 1], 80)};
  return *command;
}

int run(const Options& options) {
  if (options.has("--help") && options.words().empty()) {
    print_usage();
    return done;
  }
  const Command& command = command_of(options);
  if (options.has("--help")) {
    print_usage(command);
    return done;
  }
  Desk desk{options};
  if (command.run != schema && command.run != check) desk.store.check();
  return command.run(desk);
}

}  // namespace idemctl

int main(int argc, char** argv) {
  using namespace idemctl;
  try {
    const int how = run(Options{argc, argv});
    if (!std::cout.flush())
      return say(try_again, "the answer could not be written; what was asked may be done");
    return how;
  } catch (const UsageError& e) {
    return say(wrong_use, std::string{e.what()} + "; idemctl --help tells how it is used");
  } catch (const idem::InvalidKey& e) {
    return say(wrong_use, e.what());
  } catch (const std::invalid_argument& e) {
    return say(wrong_use, e.what());
  } catch (const idem::ConfigurationError& e) {
    return say(misconfigured, e.what());
  } catch (const idem::PermanentError& e) {
    return say(refused, e.what());
  } catch (const std::exception& e) {
    return say(try_again, e.what());
  }
}
