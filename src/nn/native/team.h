// Threads for the operations, and what MindSpore gives these.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace albert {

// What MindSpore gives: operands by their number, inputs first.
struct Operands {
  void **data;
  int *ranks;
  int64_t **shapes;

  float *operator[](int i) const { return static_cast<float *>(data[i]); }
  float scalar(int i) const { return *static_cast<float *>(data[i]); }
  int64_t last(int i) const { return shapes[i][ranks[i] - 1]; }
  int64_t rows(int i) const {
    int64_t product = 1;
    for (int axis = 0; axis + 1 < ranks[i]; ++axis) product *= shapes[i][axis];
    return product;
  }
};

// Whether all labels are columns of rows of this size.
inline bool all_below(const int32_t *labels, int64_t rows, int64_t size) {
  return std::all_of(labels, labels + rows, [size](int32_t label) { return label >= 0 && label < size; });
}

// Space for one thread's numbers, as much as so many floats take, kept from operation to operation.
class Scratch {
 public:
  explicit Scratch(int64_t floats) {
    const int64_t bytes = floats * sizeof(float);
    if (size_ >= bytes) return;
    space_.reset();  // first, so that there are not both
    size_ = 0;       // what follows may throw
    space_.reset(new unsigned char[bytes]);
    size_ = bytes;
  }

  template <typename Number = float>
  Number *take(int64_t size) {
    Number *begin = reinterpret_cast<Number *>(space_.get() + taken_);
    taken_ += floats<Number>(size) * sizeof(float);
    return begin;
  }

  // What so many numbers take.
  template <typename Number>
  static int64_t floats(int64_t size) {
    return (size * sizeof(Number) + sizeof(float) - 1) / sizeof(float);
  }

 private:
  static thread_local std::unique_ptr<unsigned char[]> space_;
  static thread_local int64_t size_;  // bytes
  int64_t taken_ = 0;                 // of them
};

inline thread_local std::unique_ptr<unsigned char[]> Scratch::space_;
inline thread_local int64_t Scratch::size_ = 0;

// As many threads as set_threads says, which wait a tenth of a millisecond for the next operation before they sleep:
// MindSpore's own threads need the cores in between.
class Team {
 public:
  static int threads;  // of the team, the calling one among them; to be set before its first use

  static Team &get() {
    static Team *team = new Team;  // never deleted: its threads end with the process
    return *team;
  }

  int64_t size() const { return size_; }

  // Calls work(0) to work(parts - 1), each in the first thread that is free, once no other operation has them: a thread
  // whose core is busy with another program does fewer. Throws what a part throws.
  void run(int64_t parts, const std::function<void(int64_t)> &work) {
    if (parts == 1) return work(0);
    std::lock_guard<std::mutex> alone(running_);
    work_ = &work;
    parts_ = parts;
    left_ = parts;
    {
      std::lock_guard<std::mutex> lock(sleeping_);
      offer_ = (offer_ / kCall + 1) * kCall + parts;
    }
    wake_.notify_all();
    take_parts();
    for (int turn = 0; left_ > 0; ++turn) wait_a_little(turn);
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  Team() {
    try {
      for (int64_t number = 1; number < size_; ++number) {
        std::thread helper([this] { serve(); });
        pthread_setname_np(helper.native_handle(), kName);
        helper.detach();
      }
    } catch (const std::system_error &) {  // no more are allowed: those that there are do all parts
    }
  }

  void serve() {
    for (uint64_t call = 0;;) {
      for (int turn = 0; offer_ / kCall == call && turn < kTurns; ++turn) wait_a_little(turn);
      if (offer_ / kCall == call) {
        std::unique_lock<std::mutex> lock(sleeping_);
        wake_.wait(lock, [&] { return offer_ / kCall != call; });
      }
      call = offer_ / kCall;
      take_parts();
    }
  }

  void take_parts() {
    for (uint64_t offer = offer_; offer % kCall > 0;) {
      if (!offer_.compare_exchange_weak(offer, offer - 1)) continue;
      try {
        (*work_)(parts_ - offer % kCall);  // run() changes nothing before this part is done
      } catch (...) {  // such as too little memory: run() throws it, once all parts are done
        std::lock_guard<std::mutex> lock(failing_);
        failure_ = std::current_exception();
      }
      --left_;
      offer = offer_;
    }
  }

  static void wait_a_little(int turn) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    if (turn >= kTurns) std::this_thread::yield();
  }

  static constexpr char kName[] = "albert-layers";
  static constexpr int kTurns = 2000;          // some 100 microseconds on x86
  static constexpr uint64_t kCall = 1u << 16;  // above the number of parts
  const int64_t size_ = threads;
  const std::function<void(int64_t)> *work_ = nullptr;
  int64_t parts_ = 0;
  std::atomic<int64_t> left_{0};    // parts that are not done
  std::atomic<uint64_t> offer_{0};  // kCall times the number of operations so far, and parts that nobody has taken
  std::exception_ptr failure_;  // of a part
  std::mutex running_, sleeping_, failing_;
  std::condition_variable wake_;
};

inline int Team::threads = 1;

constexpr int64_t kLeast = 16384;  // entries that are worth a thread

inline int64_t parts_of(int64_t rows, int64_t columns) {
  return std::max<int64_t>(1, std::min({Team::get().size(), rows, rows * columns / kLeast}));
}

// Calls work(begin, end) for shares of all rows, of so many columns.
template <typename Work>
void each_share(int64_t rows, int64_t columns, Work work) {
  const int64_t parts = parts_of(rows, columns);
  Team::get().run(parts, [&](int64_t part) { work(rows * part / parts, rows * (part + 1) / parts); });
}

// Calls work(row) for all rows, of so many columns.
template <typename Work>
void each_row(int64_t rows, int64_t columns, Work work) {
  each_share(rows, columns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) work(i);
  });
}

// Calls work(row, sums) for all rows, where sums are `columns` numbers of the thread's share of the rows that begin as
// 0; those of all shares are written to the totals, an equal share of the columns to each.
template <typename Work>
void each_row_summed(int64_t rows, int64_t columns, std::initializer_list<float *> totals, Work work) {
  const int64_t parts = parts_of(rows, columns);
  std::vector<float> sums(parts * columns, 0.0f);
  Team::get().run(parts, [&](int64_t part) {
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; ++i) work(i, sums.data() + part * columns);
  });
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t j = 0; j < columns; ++j) sums[j] += sums[part * columns + j];
  }
  const int64_t share = columns / totals.size();
  const float *from = sums.data();
  for (float *total : totals) {
    std::copy_n(from, share, total);
    from += share;
  }
}

}  // namespace albert
