// Runs of the loop and of teams under a sanitizer: results in order, failures, stops, pauses, words
// of other processors, random graphs of tiles, and the end.

#include <cstdio>
#include <cstdlib>
#include <random>

#include "loop.hpp"
#include "team.hpp"

namespace {

using coexec::Call;
using coexec::Copy;
using coexec::Kind;
using coexec::Loop;
using coexec::Program;
using coexec::Spot;
using coexec::Team;
using coexec::Threads;

constexpr std::size_t kDevices = 4;
constexpr std::size_t kStages = 20;
constexpr std::size_t kRuns = 300;

int add_one(std::int64_t* number) {
  ++*number;
  return 0;
}

int refuse() { return -5; }

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "stress: %s\n", what);
  std::exit(1);
}

Call call_of(int (*function)(std::int64_t*), std::int64_t* argument) {
  Call call;
  call.function = reinterpret_cast<std::intptr_t>(function);
  call.arguments[0] = reinterpret_cast<std::intptr_t>(argument);
  return call;
}

// Each device copies the number of the one before, from an earlier stage, and adds one.
std::vector<Program> ring(std::vector<std::vector<std::int64_t>>& numbers) {
  std::vector<Program> programs(kDevices);
  for (std::size_t device = 0; device < kDevices; ++device) {
    Program& program = programs[device];
    for (std::size_t stage = 0; stage < kStages; ++stage) {
      const std::size_t before = (device + kDevices - 1) % kDevices;
      std::int64_t* number = &numbers[stage][device];
      if (stage > 0) {
        const auto event = static_cast<std::uint32_t>((stage - 1) * kDevices + before);
        program.steps.push_back({Kind::await, event});
        Copy copy;
        copy.target = Spot{-1, reinterpret_cast<std::intptr_t>(number)};
        copy.source = Spot{-1, reinterpret_cast<std::intptr_t>(&numbers[stage - 1][before])};
        copy.bytes = sizeof(std::int64_t);
        program.steps.push_back({Kind::copy, static_cast<std::uint32_t>(program.copies.size())});
        program.copies.push_back(copy);
      }
      program.steps.push_back({Kind::call, static_cast<std::uint32_t>(program.calls.size())});
      program.calls.push_back(call_of(add_one, number));
      program.steps.push_back({Kind::signal, static_cast<std::uint32_t>(stage * kDevices + device)});
    }
  }
  return programs;
}

void await_rest(const Threads& loop) {
  for (std::size_t device = 1; device < loop.count(); ++device)
    while (!loop.rests(device)) std::this_thread::yield();
}

struct Crew {
  explicit Crew(Threads& loop) : Crew(loop, loop.count()) {}
  Crew(Threads& loop, std::size_t present) : loop(loop) {
    for (std::size_t device = 1; device < present; ++device)
      threads.emplace_back([&loop, device] { loop.serve(device); });
  }
  ~Crew() {
    loop.end();
    for (std::thread& thread : threads) thread.join();
  }
  Threads& loop;
  std::vector<std::thread> threads;
};

void runs_in_order(coexec::Duration spin) {
  std::vector<std::vector<std::int64_t>> numbers(kStages, std::vector<std::int64_t>(kDevices));
  Loop loop(ring(numbers), 0, kStages * kDevices, 0, spin);
  Crew crew(loop);
  for (std::size_t run = 0; run < kRuns; ++run) {
    for (std::int64_t& first : numbers[0]) first = static_cast<std::int64_t>(run);
    require(loop.run([] { return true; }, run % 2 == 0), "a run has not ended");
    for (const std::int64_t last : numbers[kStages - 1])
      require(last == static_cast<std::int64_t>(run + kStages), "a number is wrong");
  }
}

void fails_and_goes_on(coexec::Duration spin) {
  std::vector<Program> programs(kDevices);
  for (std::size_t device = 0; device < kDevices; ++device)
    programs[device].steps.push_back({Kind::await, 0});
  Call call;
  call.function = reinterpret_cast<std::intptr_t>(&refuse);
  programs[2].calls.push_back(call);
  programs[2].steps[0] = {Kind::call, 0};
  Loop loop(std::move(programs), 0, 1, 0, spin);
  Crew crew(loop);
  for (std::size_t run = 0; run < kRuns; ++run) {
    require(!loop.run([] { return true; }, false), "a failure was not noticed");
    const coexec::Failure* failure = loop.failure();
    require(failure != nullptr && failure->device == 2 && failure->result == -5, "wrong failure");
    await_rest(loop);
  }
}

void stops(coexec::Duration spin) {
  std::vector<Program> programs(kDevices);
  for (Program& program : programs) program.steps.push_back({Kind::await, 0});
  Loop loop(std::move(programs), 0, 1, 0, spin);
  Crew crew(loop);
  for (int run = 0; run < 10; ++run) {
    std::atomic<bool> done{false};
    std::thread other([&] {
      while (!done.load()) {  // a stop in front of the run is none
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        loop.stop();
      }
    });
    require(!loop.run([] { return true; }, false), "a stopped run has ended");
    done.store(true);
    other.join();
    await_rest(loop);
    require(!loop.run([] { return false; }, false), "a run has not looked");
    await_rest(loop);
  }
}

void pauses() {
  std::vector<std::vector<std::int64_t>> numbers(kStages, std::vector<std::int64_t>(kDevices));
  Loop loop(ring(numbers), 0, kStages * kDevices, 0, coexec::Duration(1000));
  Crew crew(loop);
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done.load()) {
      loop.pause();
      while (!loop.pauses()) std::this_thread::yield();
      loop.go_on();
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  });
  for (std::size_t run = 0; run < kRuns; ++run) {
    for (std::int64_t& first : numbers[0]) first = 0;
    require(loop.run([] { return true; }, false), "a paused run has not ended");
    require(numbers[kStages - 1][0] == kStages, "a number is wrong behind a pause");
  }
  done.store(true);
  other.join();
}

// Another processor adds one between two words. It may wait for ever if a stop does not release it.
void meets_at_words(coexec::Duration spin) {
  std::atomic<std::uint32_t> words[2] = {};
  std::int64_t number = 0;
  std::vector<Program> programs(kDevices);
  Program& program = programs[1];
  program.calls.push_back(call_of(add_one, &number));
  for (std::atomic<std::uint32_t>& word : words)
    program.words.push_back(reinterpret_cast<std::intptr_t>(&word));
  program.steps = {{Kind::call, 0}, {Kind::set_word, 0}, {Kind::await_word, 1}, {Kind::call, 0}};
  program.steps.push_back({Kind::signal, 0});
  programs[0].steps.push_back({Kind::await, 0});
  Loop loop(std::move(programs), 0, 1, 0, spin);
  Crew crew(loop);
  for (std::size_t run = 0; run < kRuns; ++run) {
    const bool stopped = run + 1 == kRuns;
    for (std::atomic<std::uint32_t>& word : words) word.store(0);
    number = 0;
    std::thread other([&] {
      while (words[0].load() == 0) std::this_thread::yield();
      if (stopped) return;
      ++number;
      words[1].store(1);
    });
    require(loop.run([&] { return !stopped; }, false) != stopped, "a run at words has not ended");
    other.join();
    if (!stopped) require(number == 3, "a number is wrong behind a word");
  }
  await_rest(loop);
  require(!loop.run([] { return true; }, false), "a loop with words runs again behind a stop");
}

// A random graph of tiles. An item of a launch is a number that depends on all items of the tiles
// that its tile waits for. Plain memory: ThreadSanitizer reports a tile that does not wait.
struct Graph {
  explicit Graph(std::mt19937& random) {
    const auto below = [&](std::size_t count) { return random() % count; };
    launches.resize(1 + below(30));
    for (std::size_t number = 0; number < launches.size(); ++number) {
      coexec::Launch& launch = launches[number];
      firsts.push_back(items);
      launch.kernel = reinterpret_cast<std::intptr_t>(&Graph::kernel);
      launch.arguments = {Spot{0, static_cast<std::intptr_t>(8 * items)},
                          Spot{1, 0},
                          Spot{-1, reinterpret_cast<std::intptr_t>(this)},
                          Spot{-1, static_cast<std::intptr_t>(number)}};
      launch.tiles.resize(1 + below(10));
      launch.memory_bytes = 3 * sizeof(std::int64_t);
      for (std::size_t index = 0; index < launch.tiles.size(); ++index) {
        coexec::Tile& tile = launch.tiles[index];
        const auto begin = static_cast<std::int64_t>(3 * index);
        tile.box = {begin, begin + 3, 0, 1, 0, 1};
        for (std::size_t i = 0; number > 0 && i < 2; ++i) {
          const std::size_t earlier = number - 1 - below(std::min<std::size_t>(number, 3));
          const std::size_t count = launches[earlier].tiles.size(), first = below(count);
          tile.waits.push_back({static_cast<std::uint32_t>(earlier), static_cast<std::uint32_t>(first),
                                static_cast<std::uint32_t>(first + below(count - first))});
        }
      }
      items += 3 * launch.tiles.size();
    }
  }

  static void kernel(const std::intptr_t* arguments, void* memory, std::int64_t begin,
                     std::int64_t end, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
    auto* to = reinterpret_cast<std::int64_t*>(arguments[0]);
    auto* all = reinterpret_cast<const std::int64_t*>(arguments[1]);
    const Graph& graph = *reinterpret_cast<const Graph*>(arguments[2]);
    const coexec::Launch& launch = graph.launches[static_cast<std::size_t>(arguments[3])];
    const coexec::Tile& tile = launch.tiles[static_cast<std::size_t>(begin / 3)];
    for (std::int64_t item = begin; item < end; ++item) {
      // Plain memory, too: two threads with the same one would be reported.
      auto& number = static_cast<std::int64_t*>(memory)[item - begin];
      number = arguments[3] + item;
      for (const coexec::TileRange& range : tile.waits)
        for (std::size_t i = 3 * range.first; i < 3 * (range.last + 1); ++i)
          number = (number * 31 + all[graph.firsts[range.launch] + i]) & 0xffffff;
      to[item] = number;
    }
    if (begin % 7 == 0) std::this_thread::yield();
  }

  // What the items become, from zeros.
  std::vector<std::int64_t> expected() const {
    std::vector<std::int64_t> values(items);
    for (std::size_t number = 0; number < launches.size(); ++number)
      for (const coexec::Tile& tile : launches[number].tiles) {
        const std::intptr_t arguments[] = {reinterpret_cast<std::intptr_t>(&values[firsts[number]]),
                                           reinterpret_cast<std::intptr_t>(values.data()),
                                           reinterpret_cast<std::intptr_t>(this),
                                           static_cast<std::intptr_t>(number)};
        std::array<std::int64_t, 3> memory;
        kernel(arguments, memory.data(), tile.box[0], tile.box[1], 0, 1, 0, 1);
      }
    return values;
  }

  std::vector<coexec::Launch> launches;
  std::vector<std::size_t> firsts;
  std::size_t items = 0;
};

// `present`: the threads that are there; the others compute nothing, ever. Other threads stop runs,
// or pause the team, or both.
void computes_graphs(coexec::Duration spin, std::size_t present, bool stopping, bool pausing) {
  std::mt19937 random(static_cast<std::uint32_t>(present));
  Team team(kDevices, spin);
  std::vector<std::unique_ptr<Graph>> graphs;
  for (int i = 0; i < 8; ++i) {
    graphs.push_back(std::make_unique<Graph>(random));
    team.add(graphs.back()->launches, 2);
  }
  Crew crew(team, present);
  std::atomic<bool> done{false};
  std::thread other([&, stops = 0]() mutable {
    while (!done.load()) {
      if (pausing) {
        team.pause();
        while (!team.pauses()) std::this_thread::yield();
      }
      if (stopping) team.stop();
      team.go_on();
      std::this_thread::sleep_for(std::chrono::microseconds(200 * (1 + stops++ % 10)));
    }
  });
  std::size_t ended = 0;
  for (std::size_t run = 0; run < 2 * kRuns; ++run) {
    const std::size_t number = run / 5 % graphs.size();  // some runs of the same graph in a row
    std::vector<std::int64_t> values(graphs[number]->items);
    const auto address = reinterpret_cast<std::intptr_t>(values.data());
    const std::array<std::intptr_t, 2> slots{address, address};
    if (team.run(number, slots.data(), [] { return true; }, run % 2 == 0)) {
      ++ended;
      require(values == graphs[number]->expected(), "an item of a graph is wrong");
    } else {
      require(stopping, "a run of tiles has not ended");
      await_rest(team);
    }
  }
  require(ended > 0, "no run of tiles has ended");
  done.store(true);
  other.join();
}

// Two devices of a loop, each with a team. Another thread stops the loop, or pauses it.
void computes_with_teams(coexec::Duration spin, bool stopping) {
  std::mt19937 random(7);
  std::array<Team, 2> teams{Team(kDevices, spin), Team(kDevices, spin)};
  const std::array<Graph, 2> graphs{Graph(random), Graph(random)};
  std::array<std::vector<std::int64_t>, 2> values;
  std::array<std::array<std::intptr_t, 2>, 2> slots{};
  std::vector<Program> programs(2);
  for (std::size_t device = 0; device < 2; ++device) {
    teams[device].add(graphs[device].launches, 2);
    programs[device].tiles.push_back({&teams[device], 0, slots[device].data()});
    const auto number = static_cast<std::uint32_t>(device);
    programs[device].steps = {{Kind::tiles, 0}, {Kind::signal, number}, {Kind::await, 1 - number}};
  }
  Loop loop(std::move(programs), 0, 2, 0, spin);
  Crew first(teams[0]), second(teams[1]), crew(loop);
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done.load()) {
      loop.pause();
      while (!loop.pauses()) std::this_thread::yield();
      if (stopping) loop.stop();
      loop.go_on();
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  });
  for (std::size_t run = 0; run < 2 * kRuns; ++run) {
    for (std::size_t device = 0; device < 2; ++device) {
      values[device].assign(graphs[device].items, 0);
      slots[device].fill(reinterpret_cast<std::intptr_t>(values[device].data()));
    }
    if (loop.run([] { return true; }, run % 2 == 0)) {
      for (std::size_t device = 0; device < 2; ++device)
        require(values[device] == graphs[device].expected(), "an item of a team is wrong");
    } else {
      require(stopping, "a run of teams has not ended");
      await_rest(loop);
      for (const Team& team : teams) await_rest(team);
    }
  }
  done.store(true);
  other.join();
}

}  // namespace

int main() {
  for (const coexec::Duration spin : {coexec::Duration(0), coexec::Duration(100000)}) {
    runs_in_order(spin);
    fails_and_goes_on(spin);
    stops(spin);
    meets_at_words(spin);
    for (const std::size_t present : {kDevices, std::size_t{2}, std::size_t{1}})
      computes_graphs(spin, present, false, false);
    for (const bool pausing : {false, true}) computes_graphs(spin, kDevices, true, pausing);
    computes_graphs(spin, kDevices, false, true);
    for (const bool stopping : {false, true}) computes_with_teams(spin, stopping);
  }
  pauses();
  std::puts("stress: all right");
}
