// SPDX-License-Identifier: MIT
#pragma once

// Workers with their consumers, a broker and relays around one database:
// everything that happens is a step, and the scheduler says which comes next.
// While a call waits for the database or its handler works, other steps happen.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include <idem/consumer.hpp>
#include <idem/error.hpp>
#include <idem/event.hpp>
#include <idem/lease.hpp>
#include <idem/outcome.hpp>
#include <idem/retry.hpp>
#include <idem/runtime.hpp>
#include <idem/testing/faulty_store.hpp>
#include <idem/testing/manual_clock.hpp>
#include <idem/testing/scheduler.hpp>

#include "simulation/database.hpp"
#include "simulation/happenings.hpp"
#include "simulation/referee.hpp"
#include "simulation/relay.hpp"

namespace idem::tests::simulation {

class World {
  class Worker;

 public:
  /// Workers that go from world to world, one at a time: to make consumers
  /// takes longer than a run.
  using Crew = std::vector<std::unique_ptr<Worker>>;

  World(std::uint64_t seed, testing::Scheduler::Story story, Crew& crew)
      : scheduler_{seed, story}, workers_{crew} {
    for (std::size_t i = 0; i < 3; ++i) {
      names_.push_back(fmt::format("s{}-e{}", seed, i));
      const bool in_database = scheduler_.chance(60);
      happenings_.push_back({in_database, scheduler_.chance(8), scheduler_.pick(2)});
      for (std::size_t copies = 1 + (scheduler_.chance(30) ? 1U : 0U); copies > 0; --copies)
        queue_.push_back({i});
    }
    for (int i = 0; i < 3; ++i) {
      if (workers_.size() == static_cast<std::size_t>(i))
        workers_.push_back(std::make_unique<Worker>(*this, i));
      else
        workers_[static_cast<std::size_t>(i)]->enter(*this);
    }
    for (int i = 0; i < 2; ++i) relays_.push_back(std::make_unique<Relay>(i, database_, referee_, names_));
    add_steps();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void run() {
    constexpr int with_mishaps = 40;
    constexpr int most = 2000;
    for (int n = 0; !referee_.blamed() && !over(); ++n) {
      if (n == with_mishaps) calm_ = true;
      if (n == most) return referee_.blame({}, "the run does not come to an end");
      scheduler_.step();
    }
    if (!referee_.blamed()) check_end();
    met_.takeovers = referee_.takeovers();
  }

  [[nodiscard]] const Referee& referee() const noexcept { return referee_; }
  [[nodiscard]] const Met& met() const noexcept { return met_; }
  [[nodiscard]] std::vector<std::string> story(std::string_view event) const {
    return scheduler_.story(event);
  }

 private:
  using Store = testing::FaultyStore<Watched>;

  /// Effect in the database, and a message about it.
  struct Book {
    Worker* worker;
    void operator()(Transaction& tx, const std::size_t& event) const {
      worker->world().book(*worker, tx, event);
    }
  };
  /// Effect outside.
  struct Mail {
    Worker* worker;
    void operator()(Lease& lease, const std::size_t& event) const {
      worker->world().mail(*worker, lease, event);
    }
  };

  static constexpr auto here = ConstantBackoff{std::chrono::milliseconds{100}} | MaxAttempts{2};
  static constexpr auto later = Redeliver{ConstantBackoff{std::chrono::seconds{1}} | MaxAttempts{3}};
  using Here = std::remove_const_t<decltype(here)>;
  using Later = std::remove_const_t<decltype(later)>;

  /// One process. Its consumers are made once, and see one world after the
  /// other.
  class Worker {
   public:
    Worker(World& world, int its_name) : name{its_name}, world_{&world} { enter(world); }

    void enter(World& world) {
      world_ = &world;
      at_work = dead = false;
      connection.emplace(world.database_, [&world] { return world.goes_wrong(10); });
      watched_.emplace(*connection, world.referee_, world.scheduler_, [&world] { world.meanwhile(15); });
      store.emplace(*watched_, [&world](testing::Verb) { return world.mishap(); });
      if (!book) book.emplace("book.v1", *store, Book{this}, here, later, options(), runtime());
      if (!mail) mail.emplace("mail.v1", *store, Mail{this}, here, later, options(), runtime());
    }
    [[nodiscard]] World& world() const noexcept { return *world_; }

    const int name;
    bool at_work = false;
    bool dead = false;
    std::optional<Connection> connection = {};
    std::optional<Store> store = {};
    std::optional<IdempotentConsumer<Store, Book, Here, Later, ConsumerOptions, Runtime>> book = {};
    std::optional<IdempotentConsumer<Store, Mail, Here, Later, ConsumerOptions, Runtime>> mail = {};

   private:
    [[nodiscard]] ConsumerOptions options() const {
      return {.on_concurrent = name == 2 ? Concurrent::defer : Concurrent::wait,
              .wait_limit = std::chrono::seconds{1},
              .lease = std::chrono::seconds{10},
              .heartbeat = false};
    }

    /// The workers' clocks do not agree: nothing may depend on them.
    [[nodiscard]] Runtime runtime() {
      const auto skew = std::chrono::hours{7 * name};
      return {.clock = [this, skew] { return world_->clock_.now() + skew; },
              .sleeper = [this, skew](std::chrono::steady_clock::time_point until,
                                      const std::stop_token&) { world_->sleep(until - skew); },
              .engine = [this] { return world_->scheduler_.draw(); }};
    }

    std::optional<Watched> watched_ = {};
    World* world_;
  };

  void add_steps() {
    for (int weight = 0; weight < 3; ++weight)
      scheduler_.add(
          "", [this] { return has_delivery(); }, [this] { deliver(); });
    scheduler_.add(
        "", [] { return true; }, [this] { let_time_pass(); });
    scheduler_.add(
        "", [this] { return database_.any_running(); }, [this] { database_.end_running(); });
    scheduler_.add(
        "", [this] { return any_worker([](const Worker& w) { return w.dead; }); }, [this] { restart(); });
    for (const auto& relay : relays_)
      scheduler_.add(
          "", [&relay = *relay] { return relay.has_work(); },
          [this, &relay = *relay] { relay.step(calm_ ? Relay::Luck::good : Relay::Luck::changing); });
  }

  template <class Which>
  [[nodiscard]] bool any_worker(Which which) const {
    return std::any_of(workers_.begin(), workers_.end(), [&](const auto& w) { return which(*w); });
  }
  template <class Which>
  [[nodiscard]] Worker& one_worker(Which which) {
    std::vector<Worker*> all;
    for (const auto& worker : workers_)
      if (which(*worker)) all.push_back(worker.get());
    return *all[scheduler_.pick(all.size())];
  }
  static bool is_idle(const Worker& worker) { return !worker.at_work && !worker.dead; }

  [[nodiscard]] bool is_visible(const Message& message) const {
    return !message.gone && message.visible_at <= clock_.now();
  }
  [[nodiscard]] bool has_delivery() const {
    return any_worker(is_idle) &&
           std::any_of(queue_.begin(), queue_.end(), [this](const Message& m) { return is_visible(m); });
  }

  /// At least once, in any order; what is not answered in time comes again.
  void deliver() {
    std::vector<Message*> visible;
    for (Message& message : queue_)
      if (is_visible(message)) visible.push_back(&message);
    Message& message = *visible[scheduler_.pick(visible.size())];
    Worker& worker = one_worker(is_idle);
    ++message.deliveries;
    message.visible_at = clock_.now() + std::chrono::seconds{scheduler_.chance(30) ? 2 : 30};
    worker.at_work = true;
    const std::uint64_t call = ++calls_;
    worker.connection->begin_call(call);
    const std::string& id = names_[message.event];
    scheduler_.tell(id, [&] {
      return fmt::format("worker {} is given {} for the {}. time (call {})", worker.name, id,
                         message.deliveries, call);
    });
    const Event event{.id = id, .delivery_count = message.deliveries};
    try {
      const auto outcome = happenings_[message.event].in_database
                               ? worker.book->process(event, message.event)
                               : worker.mail->process(event, message.event);
      settle(worker, call, message, outcome);
    } catch (const testing::Crash&) {
      ++met_.crashes;
      worker.dead = true;
      scheduler_.tell(id, [&] { return fmt::format("worker {} has crashed", worker.name); });
    }
    worker.at_work = false;
  }

  void settle(const Worker& worker, std::uint64_t call, Message& message, const Outcome<>& outcome) {
    const std::string& id = names_[message.event];
    scheduler_.tell(id, [&] {
      return fmt::format("worker {} says {}, {}{}", worker.name, to_string(outcome.status),
                         to_string(outcome.action), outcome.failure ? ": " + outcome.failure->message : "");
    });
    met_.count(outcome);
    switch (outcome.action) {
      case Action::acknowledge:
        if (!has_effect(message.event)) referee_.blame(id, "acknowledged without its effect");
        message.gone = !goes_wrong(10);
        break;
      case Action::dead_letter:
        if (is_of_call(call)) referee_.blame(id, "rejected, and its effect is there or may come");
        happenings_[message.event].rejected = true;
        message.gone = true;
        break;
      case Action::redeliver:
        message.visible_at = clock_.now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                outcome.redeliver_after);
        break;
    }
    if (effects_of(message.event) > 1) referee_.blame(id, "the effect is there twice");
  }

  [[nodiscard]] std::ptrdiff_t effects_of(std::size_t event) const {
    const auto& all = database_.tables().effects;
    return std::count_if(all.begin(), all.end(), [&](const Effect& e) { return e.event == event; });
  }
  [[nodiscard]] bool has_effect(std::size_t event) const {
    return happenings_[event].in_database ? effects_of(event) > 0 : happenings_[event].deeds > 0;
  }
  /// Committed by this call, or about to be.
  [[nodiscard]] bool is_of_call(std::uint64_t call) const {
    const auto& all = database_.tables().effects;
    return database_.running_of(call) ||
           std::any_of(all.begin(), all.end(), [&](const Effect& e) { return e.call == call; });
  }

  void book(Worker& worker, Transaction& tx, std::size_t event) {
    begin_handler(worker, event);
    tx.add_effect(event);
    meanwhile(30);
    tx.enqueue(event, happenings_[event].lane);
    meanwhile(30);
    end_handler(worker);
  }

  void mail(Worker& worker, Lease& lease, std::size_t event) {
    begin_handler(worker, event);
    if (scheduler_.chance(30)) lease.extend(std::chrono::seconds{10});
    Happening& happening = happenings_[event];
    ++happening.deeds;
    if (happening.key_outside.empty()) happening.key_outside = lease.idempotency_key();
    if (happening.key_outside != lease.idempotency_key())
      referee_.blame(names_[event], "the effect is there twice: the idempotency key has changed");
    scheduler_.tell(names_[event], "    the handler sends the mail");
    meanwhile(30);
    end_handler(worker);
  }

  void begin_handler(Worker& worker, std::size_t event) {
    scheduler_.tell(names_[event],
                    [&] { return fmt::format("    the handler of worker {} starts", worker.name); });
    if (handlers_ > 0) ++met_.overlaps;
    if (goes_wrong(8)) throw TransientError{"the handler failed"};
    if (happenings_[event].poison) throw PermanentError{"the event is poison"};
    ++handlers_;
    meanwhile(30);
    --handlers_;
  }
  void end_handler(Worker& worker) {
    if (goes_wrong(3)) worker.store->crash();
    if (goes_wrong(5)) throw TransientError{"the handler failed in the end"};
  }

  void restart() {
    Worker& worker = one_worker([](const Worker& w) { return w.dead; });
    worker.dead = false;
    worker.store->restart();
  }

  void let_time_pass() {
    static constexpr std::chrono::milliseconds spans[] = {std::chrono::milliseconds{300},
                                                          std::chrono::seconds{2}, std::chrono::seconds{11},
                                                          std::chrono::seconds{40}};
    const auto span = spans[scheduler_.pick(4)];
    clock_.advance(span);
    scheduler_.tell({}, [&] { return fmt::format("{} ms pass", span.count()); });
  }

  /// Lets others get on while somebody waits.
  void meanwhile(std::uint32_t percent) {
    constexpr int deepest = 3;
    if (calm_ || depth_ == deepest || !scheduler_.chance(percent)) return;
    ++depth_;
    try {
      scheduler_.step();
    } catch (...) {
      --depth_;
      throw;
    }
    --depth_;
  }

  [[nodiscard]] bool goes_wrong(std::uint32_t percent) { return !calm_ && scheduler_.chance(percent); }

  [[nodiscard]] testing::Mishap mishap() {
    if (!goes_wrong(12)) return testing::Mishap::none;
    return static_cast<testing::Mishap>(1 + scheduler_.pick(7));
  }

  void sleep(std::chrono::steady_clock::time_point until) {
    clock_.advance_to(until);
    meanwhile(30);
  }

  [[nodiscard]] bool over() {
    const auto& outbox = database_.tables().outbox;
    return calm_ && !database_.any_running() &&
           std::all_of(queue_.begin(), queue_.end(), [](const Message& m) { return m.gone; }) &&
           std::none_of(relays_.begin(), relays_.end(),
                        [](const auto& relay) { return relay->has_work(); }) &&
           std::none_of(outbox.begin(), outbox.end(),
                        [&](const OutboxRow& row) { return row.claimed_until > database_.now(); });
  }

  void check_end() {
    const auto& outbox = database_.tables().outbox;
    for (std::size_t i = 0; i < happenings_.size(); ++i) {
      if (!has_effect(i) && !happenings_[i].rejected)
        referee_.blame(names_[i], "neither is its effect there nor was it rejected");
      if (effects_of(i) > 1) referee_.blame(names_[i], "the effect is there twice");
      const auto messages =
          std::count_if(outbox.begin(), outbox.end(), [&](const OutboxRow& row) { return row.event == i; });
      if (messages != effects_of(i))
        referee_.blame(names_[i], "its effect and its message are not both there");
    }
    for (const OutboxRow& row : outbox)
      if (!row.published) referee_.blame(names_[row.event], "a message was never published");
  }

  testing::Scheduler scheduler_;
  testing::ManualClock clock_{};
  Database database_{scheduler_, clock_};
  Referee referee_{scheduler_, clock_};
  std::vector<std::string> names_ = {};
  std::vector<Happening> happenings_ = {};
  std::vector<Message> queue_ = {};
  Crew& workers_;
  std::vector<std::unique_ptr<Relay>> relays_ = {};
  Met met_ = {};
  std::uint64_t calls_ = 0;
  int depth_ = 0;
  int handlers_ = 0;
  bool calm_ = false;
};

}  // namespace idem::tests::simulation
