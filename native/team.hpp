// A team: threads that compute the launches of one network together, in tiles.
//
// A launch is a kernel over a grid, cut into tiles, which are boxes of the grid. A tile waits for
// ranges of tiles of earlier launches, and for nothing else: there is no barrier between launches.
// A kernel is a C function,
//
//   void kernel(const intptr_t* arguments, void* memory, int64_t begin0, int64_t end0,
//               int64_t begin1, int64_t end1, int64_t begin2, int64_t end2);
//
// which computes the work items of a box. Its arguments are addresses of tensors and numbers. The
// memory belongs to the thread: it begins at a cache line and has any content.
//
// Each thread has a lane: the same part of the tiles of each launch, in the order of launches. So
// rows of an image stay in the cache of one core. A thread whose next tile is not ready for some
// microseconds computes a tile of another lane: of the one with most left, and there the last tile
// that is ready in the launch under way. So a thread that another program keeps from running delays
// no more than the tile that it has begun.
//
// One word a tile holds the number of a request: r once a thread has begun the tile, r + 1 once it
// is done. Numbers grow, so nothing is reset between requests. A thread that comes late to a request
// finds that all tiles have been begun. Words that different threads write lie on cache lines of
// their own, and a thread that found no tile to help with waits before it looks again: it would take
// these lines away from those that compute.
//
// No request stops for ever. A thread begins a tile only if the tile is ready, so a tile that has
// been begun gets done. Waits lead to earlier launches only, so of the tiles that no thread has
// begun, the first one in the order of launches is ready once those that have been begun are done.
// It is the first such tile of its lane, where every thread without a tile looks for work.
//
// `coexec.runtime.twin_team` interprets the same launches in Python.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "threads.hpp"

namespace coexec {

using Kernel = void (*)(const std::intptr_t*, void*, std::int64_t, std::int64_t, std::int64_t,
                        std::int64_t, std::int64_t, std::int64_t);

// Tiles of an earlier launch, `last` included.
struct TileRange {
  std::uint32_t launch;
  std::uint32_t first;
  std::uint32_t last;
};

struct Tile {
  std::array<std::int64_t, 6> box{};  // begin and end along each axis of the grid
  std::vector<TileRange> waits;
};

struct Launch {
  std::intptr_t kernel = 0;
  std::vector<Spot> arguments;  // an address, or a number where there is no slot
  std::vector<Tile> tiles;
  std::size_t memory_bytes = 0;  // of the thread, that the kernel needs
};

// When a tile was computed, and by which thread.
struct TileSpan {
  double begin_s;
  double end_s;
  std::size_t thread;
};

// The launches of one network, ready for a team.
class Launches {
 public:
  Launches(const std::vector<Launch>& launches, std::size_t threads, std::size_t slots)
      : slots_(slots), lanes_(threads) {
    std::vector<std::uint32_t> firsts;  // by launch, number of the first tile
    for (const Launch& launch : launches) {
      const auto first = static_cast<std::uint32_t>(tiles_.size());
      const std::size_t arguments = words_.size();
      for (const Spot& spot : launch.arguments) {
        if (spot.slot >= 0) moving_.push_back({words_.size(), checked(spot)});
        words_.push_back(spot.offset);
      }
      for (const Tile& tile : launch.tiles) add(tile, launch, arguments, launches, firsts);
      firsts.push_back(first);
      share(first, static_cast<std::uint32_t>(tiles_.size()));
    }
    std::vector<bool> awaited(tiles_.size());
    for (const Range& range : waits_)
      std::fill(awaited.begin() + range.first, awaited.begin() + range.last + 1, true);
    for (std::uint32_t tile = 0; tile < tiles_.size(); ++tile)
      if (!awaited[tile]) last_.push_back(tile);
    lines_ = std::vector<Line>(next_place_ / kWords + 1);
    spans.resize(tiles_.size());
  }

  std::size_t slots() const { return slots_; }

  // Makes a new request, with the pointers of all slots.
  void begin(const std::intptr_t* slots) {
    for (const Moving& moving : moving_)
      words_[moving.word] = slots[moving.spot.slot] + moving.spot.offset;
    request_.store(request_.load(std::memory_order_relaxed) + 2, std::memory_order_seq_cst);
  }

  std::uint32_t request() const { return request_.load(std::memory_order_seq_cst); }

  bool is_done(std::uint32_t request) const {
    for (const std::uint32_t tile : last_)
      if (!is_done(tile, request)) return false;
    return true;
  }

  // The next tile of a thread's lane, if it is ready; kNone otherwise.
  std::uint32_t own(std::size_t thread, std::uint32_t request) {
    Lane& lane = lanes_[thread];
    const std::size_t next = first_open(lane, request);
    return next < lane.tiles.size() && is_ready(lane.tiles[next], request) ? lane.tiles[next] : kNone;
  }

  bool has_own(std::size_t thread, std::uint32_t request) {
    return first_open(lanes_[thread], request) < lanes_[thread].tiles.size();
  }

  // A tile of any lane that is ready; kNone if there is none near.
  std::uint32_t any(std::size_t thread, std::uint32_t request) {
    std::size_t longest = thread, most = 0;
    for (std::size_t i = 1; i <= lanes_.size(); ++i) {
      Lane& lane = lanes_[(thread + i) % lanes_.size()];
      const std::size_t left = lane.tiles.size() - first_open(lane, request);
      if (left > most) longest = (thread + i) % lanes_.size(), most = left;
    }
    for (std::size_t i = 0; most > 0 && i < lanes_.size(); ++i) {
      const std::uint32_t tile = far_end(lanes_[(longest + i) % lanes_.size()], request);
      if (tile != kNone) return tile;
    }
    return kNone;
  }

  // Whether the calling thread is the one that has to compute a tile.
  bool claim(std::uint32_t tile, std::uint32_t request) {
    std::uint32_t seen = state(tile).load(std::memory_order_relaxed);
    return is_before(seen, request) &&
           state(tile).compare_exchange_strong(seen, request, std::memory_order_seq_cst);
  }

  void compute(std::uint32_t number, void* memory) const {
    const Placed& tile = tiles_[number];
    const auto& b = tile.box;
    tile.kernel(words_.data() + tile.arguments, memory, b[0], b[1], b[2], b[3], b[4], b[5]);
  }

  void finish(std::uint32_t tile, std::uint32_t request) {
    state(tile).store(request + 1, std::memory_order_seq_cst);
  }

  static constexpr std::uint32_t kNone = UINT32_MAX;

  std::vector<TileSpan> spans;  // by tile, of the latest timed run

 private:
  static constexpr int kAhead = 8;  // shares of a lane in which other threads look for a tile

  struct Range {
    std::uint32_t first;
    std::uint32_t last;
  };

  struct Placed {
    Kernel kernel;
    std::size_t arguments;  // index of the first one
    std::array<std::int64_t, 6> box;
    std::size_t waits_begin;
    std::size_t waits_end;
  };

  struct Moving {
    std::size_t word;
    Spot spot;
  };

  static constexpr std::size_t kWords = 16;  // of a cache line

  struct alignas(64) Line {
    std::array<std::atomic<std::uint32_t>, kWords> words{};
  };

  struct alignas(64) Lane {
    // A request, and in the lower half how many tiles from the front have certainly been begun.
    std::atomic<std::uint64_t> position{0};
    std::vector<std::uint32_t> tiles;
    std::vector<std::uint32_t> share_ends;  // by tile, index behind its launch's share
  };

  std::atomic<std::uint32_t>& state(std::uint32_t tile) {
    return lines_[places_[tile] / kWords].words[places_[tile] % kWords];
  }
  const std::atomic<std::uint32_t>& state(std::uint32_t tile) const {
    return lines_[places_[tile] / kWords].words[places_[tile] % kWords];
  }

  // Numbers of requests grow and may overflow.
  static bool is_before(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a - b) < 0;
  }

  bool is_open(std::uint32_t tile, std::uint32_t request) const {
    return is_before(state(tile).load(std::memory_order_relaxed), request);
  }

  bool is_done(std::uint32_t tile, std::uint32_t request) const {
    return is_before(request, state(tile).load(std::memory_order_seq_cst));
  }

  bool is_ready(std::uint32_t number, std::uint32_t request) const {
    const Placed& tile = tiles_[number];
    for (std::size_t i = tile.waits_begin; i < tile.waits_end; ++i)
      for (std::uint32_t earlier = waits_[i].first; earlier <= waits_[i].last; ++earlier)
        if (!is_done(earlier, request)) return false;
    return true;
  }

  // Index in a lane of its first tile that no thread has begun; the lane's length if there is none.
  std::size_t first_open(Lane& lane, std::uint32_t request) {
    std::uint64_t seen = lane.position.load(std::memory_order_relaxed);
    const auto of = static_cast<std::uint32_t>(seen >> 32);
    if (is_before(request, of)) return lane.tiles.size();
    std::size_t index = of == request ? static_cast<std::uint32_t>(seen) : 0;
    while (index < lane.tiles.size() && !is_open(lane.tiles[index], request)) ++index;
    const std::uint64_t next = std::uint64_t{request} << 32 | index;
    if (next != seen)  // if another thread has been faster, its position is as true
      lane.position.compare_exchange_strong(seen, next, std::memory_order_relaxed);
    return index;
  }

  std::uint32_t far_end(Lane& lane, std::uint32_t request) {
    std::size_t begin = first_open(lane, request);
    for (int share = 0; share < kAhead && begin < lane.tiles.size(); ++share) {
      const std::size_t end = lane.share_ends[begin];
      for (std::size_t i = end; i-- > begin;)
        if (is_open(lane.tiles[i], request) && is_ready(lane.tiles[i], request))
          return lane.tiles[i];
      begin = end;
    }
    return kNone;
  }

  const Spot& checked(const Spot& spot) const {
    if (static_cast<std::size_t>(spot.slot) >= slots_)
      throw std::out_of_range("a launch names a slot that the team has not");
    return spot;
  }

  void add(const Tile& tile, const Launch& launch, std::size_t arguments,
           const std::vector<Launch>& launches, const std::vector<std::uint32_t>& firsts) {
    const std::size_t begin = waits_.size();
    for (const TileRange& range : tile.waits) {
      if (range.launch >= firsts.size() || range.first > range.last ||
          range.last >= launches[range.launch].tiles.size())
        throw std::out_of_range("a tile waits for tiles that no earlier launch has");
      const std::uint32_t first = firsts[range.launch];
      waits_.push_back({first + range.first, first + range.last});
    }
    const auto kernel = reinterpret_cast<Kernel>(launch.kernel);
    tiles_.push_back({kernel, arguments, tile.box, begin, waits_.size()});
  }

  // Gives each lane a part of the tiles of a launch.
  void share(std::uint32_t first, std::uint32_t end) {
    const std::size_t count = end - first;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t lane = i * lanes_.size() / count;
      if (i == 0 || lane != (i - 1) * lanes_.size() / count)  // a line of its own
        next_place_ = (next_place_ + kWords - 1) / kWords * kWords;
      places_.push_back(next_place_++);
      lanes_[lane].tiles.push_back(first + static_cast<std::uint32_t>(i));
    }
    for (Lane& lane : lanes_)
      lane.share_ends.resize(lane.tiles.size(), static_cast<std::uint32_t>(lane.tiles.size()));
  }

  const std::size_t slots_;
  std::vector<std::intptr_t> words_;  // the arguments of all launches
  std::vector<Moving> moving_;
  std::vector<Placed> tiles_;
  std::vector<Range> waits_;
  std::vector<std::uint32_t> last_;  // the tiles for which no other one waits
  std::vector<Lane> lanes_;
  std::vector<Line> lines_;  // the words of tiles
  std::vector<std::size_t> places_;  // by tile, of its word
  std::size_t next_place_ = 0;
  std::atomic<std::uint32_t> request_{0};
};

// Its thread 0 is the caller's.
class Team : public Threads {
 public:
  Team(std::size_t count, Duration spin) : Threads(count, 0, spin), memory_(count) {}

  // Prepares launches for `run`, which names them by the number that is returned. Not during a run.
  // Throws std::bad_alloc if the threads get no memory.
  std::size_t add(const std::vector<Launch>& launches, std::size_t slots) {
    std::size_t bytes = memory_bytes_;
    for (const Launch& launch : launches) bytes = std::max(bytes, launch.memory_bytes);
    if (bytes > memory_bytes_) {
      std::vector<Memory> memory;
      while (memory.size() < count()) memory.emplace_back(allocate(bytes));
      memory_ = std::move(memory);
      memory_bytes_ = bytes;
    }
    added_.push_back(std::make_unique<Launches>(launches, count(), slots));
    return added_.size() - 1;
  }

  Launches& launches(std::size_t number) { return *added_.at(number); }

  // Computes all launches of a network once. Returns whether all have ended; none begins after
  // `end`. `timed`: whether to record when each tile was computed.
  bool run(std::size_t number, const std::intptr_t* slots, const Look& look, bool timed) {
    Launches& launches = *added_.at(number);
    timed_ = timed;
    launches.begin(slots);
    latest_.store(&launches, std::memory_order_seq_cst);
    stopped_.store(false, std::memory_order_seq_cst);
    Watch watch{look, Clock::now() + kLook};
    return begin(watch) && !stopped_.load(std::memory_order_seq_cst);
  }

 private:
  static constexpr std::align_val_t kLine{64};

  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, kLine); }
  };
  using Memory = std::unique_ptr<void, Free>;

  // Not touched: the first thread that writes a page decides where it lies.
  static void* allocate(std::size_t bytes) { return ::operator new(bytes, kLine); }

  // How long a thread waits for its own next tile before it looks for one of another lane, and
  // before it looks again.
  static constexpr Duration kHelp = std::chrono::microseconds(5);

  void release() override { progress_.ring(); }

  bool follow(std::size_t number, std::uint32_t, Watch* watch) override {
    Thread& thread = threads_[number];
    thread.id.store(std::this_thread::get_id(), std::memory_order_relaxed);
    Launches& launches = *latest_.load(std::memory_order_seq_cst);
    const std::uint32_t request = launches.request();
    const Stopped stopped{this, watch};
    for (;;) {
      if (stopped()) return false;
      std::uint32_t tile = launches.own(number, request);
      if (tile == Launches::kNone) {
        Clock::time_point help = Clock::now();
        const Clock::time_point sleep = help + std::max(spin_, kHelp);
        if (launches.has_own(number, request)) help += kHelp;
        const auto found = [&](std::uint32_t) {
          tile = launches.own(number, request);
          const Clock::time_point now = Clock::now();
          if (tile == Launches::kNone && (now >= help || now >= sleep)) {
            tile = launches.any(number, request);
            help = now + kHelp;
          }
          return tile != Launches::kNone || launches.is_done(request);
        };
        // No thread sleeps before it has looked for a tile to help with.
        if (!wait(progress_, found, stopped, std::max(spin_, kHelp))) return false;
        if (tile == Launches::kNone) return true;
      }
      if (!enter(thread)) return false;
      if (launches.claim(tile, request)) carry_out(launches, tile, request, number);
      leave(thread);
    }
  }

  void carry_out(Launches& launches, std::uint32_t tile, std::uint32_t request,
                 std::size_t thread) {
    const bool timed = timed_;
    const double begin_s = timed ? seconds() : 0.0;
    launches.compute(tile, memory_[thread].get());
    if (timed) launches.spans[tile] = {begin_s, seconds(), thread};
    launches.finish(tile, request);
    progress_.ring();
  }

  std::vector<std::unique_ptr<Launches>> added_;
  std::atomic<Launches*> latest_{nullptr};
  Word progress_;  // rings when a tile is done
  std::vector<Memory> memory_;  // by thread
  std::size_t memory_bytes_ = 0;  // of each thread
  bool timed_ = false;
};

}  // namespace coexec
