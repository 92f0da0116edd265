// The operations of src/fused_layers.py: each reads its operands once and writes its results once.
//
// MindSpore calls every function with the addresses and shapes of its inputs and, behind them, of its outputs. All are
// float32 but labels (int32). Rows are dealt out in as many equal parts as there are threads; sums over rows add up what
// each part has summed, in their order, so that results depend on the number of threads, and on nothing else.

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace {

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

// exp(x) to 2 units in the last place, 0 below -87; not a number stays that. The form is one that compilers vectorise:
// x = n ln 2 + r, and exp(r) by Cephes' polynomial.
inline float exponential(float x) {
  const float clipped = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  const float n = std::nearbyint(clipped * 1.44269504f);
  const float r = (clipped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return x < -87.0f ? 0.0f : p * power;
}

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
  // whose core is busy with another program does fewer.
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
  }

 private:
  Team() {
    try {
      for (int64_t number = 1; number < size_; ++number) std::thread([this] { serve(); }).detach();
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
      (*work_)(parts_ - offer % kCall);  // run() changes nothing before this part is done
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

  static constexpr int kTurns = 2000;          // some 100 microseconds on x86
  static constexpr uint64_t kCall = 1u << 16;  // above the number of parts
  const int64_t size_ = threads;
  const std::function<void(int64_t)> *work_ = nullptr;
  int64_t parts_ = 0;
  std::atomic<int64_t> left_{0};    // parts that are not done
  std::atomic<uint64_t> offer_{0};  // kCall times the number of operations so far, and parts that nobody has taken
  std::mutex running_, sleeping_;
  std::condition_variable wake_;
};

int Team::threads = 1;

constexpr int64_t kLeast = 16384;  // entries that are worth a thread

int64_t parts_of(int64_t rows, int64_t columns) {
  return std::max<int64_t>(1, std::min({Team::get().size(), rows, rows * columns / kLeast}));
}

// Calls work(row) for all rows, of so many columns.
template <typename Work>
void each_row(int64_t rows, int64_t columns, Work work) {
  const int64_t parts = parts_of(rows, columns);
  Team::get().run(parts, [&](int64_t part) {
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; ++i) work(i);
  });
}

// Calls work(row, sums) for all rows, where sums are `columns` numbers that begin as 0; the totals are those of all rows.
template <typename Work>
void each_row_summed(int64_t rows, int64_t columns, float *totals, Work work) {
  const int64_t parts = parts_of(rows, columns);
  std::vector<float> sums(parts * columns, 0.0f);
  Team::get().run(parts, [&](int64_t part) {
    for (int64_t i = rows * part / parts; i < rows * (part + 1) / parts; ++i) work(i, sums.data() + part * columns);
  });
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t j = 0; j < columns; ++j) sums[j] += sums[part * columns + j];
  }
  std::memcpy(totals, sums.data(), columns * sizeof(float));
}

constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f * kLinear;

inline float gate(float x) { return 1.0f / (1.0f + exponential(-x * (kLinear + kCubic * x * x))); }

// y = (x - mean) / deviation * gamma + beta of a row; x is overwritten by (x - mean) / deviation.
inline float normalise(float *x, const float *gamma, const float *beta, float *y, int64_t size, float epsilon) {
  float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < size; ++j) sum += x[j];
  const float mean = sum / size;
#pragma omp simd reduction(+ : squares)
  for (int64_t j = 0; j < size; ++j) squares += (x[j] - mean) * (x[j] - mean);
  const float inverse = 1.0f / std::sqrt(squares / size + epsilon);
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) {
    x[j] = (x[j] - mean) * inverse;
    y[j] = x[j] * gamma[j] + beta[j];
  }
  return inverse;
}

// The gradient of a row of `normalise`: dx of dy; adds to the sums of gamma's and beta's.
inline void normalise_gradient(const float *dy, const float *gamma, const float *normal, float inverse, float *dx,
                               float *gammas, float *betas, int64_t size) {
  float mean = 0.0f, projection = 0.0f;
#pragma omp simd reduction(+ : mean, projection)
  for (int64_t j = 0; j < size; ++j) {
    const float gradient = dy[j] * gamma[j];
    mean += gradient;
    projection += gradient * normal[j];
    gammas[j] += dy[j] * normal[j];
    betas[j] += dy[j];
  }
  mean /= size;
  projection /= size;
#pragma omp simd
  for (int64_t j = 0; j < size; ++j) dx[j] = (dy[j] * gamma[j] - mean - normal[j] * projection) * inverse;
}

// oneDNN's product of row-major matrices, c (m, n) = alpha op(a) (m, k) op(b) (k, n) + beta c, in the calling thread;
// op transposes where it is 'T'. It is in the library that MindSpore has loaded.
using Sgemm = int (*)(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                      const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

Sgemm sgemm() {
  static void *library = dlopen("libdnnl.so.3", RTLD_NOW | RTLD_NOLOAD);
  static const auto function = reinterpret_cast<Sgemm>(library ? dlsym(library, "dnnl_sgemm") : nullptr);
  return function;
}

// Products x W^T of one x (n, k) and several W (m, k), and their gradients. Operands behind `first` others: x, then each W.
class Projections {
 public:
  Projections(const Operands &o, int first, int number) : o_(o), first_(first), number_(number) {
    n_ = o.rows(first), k_ = o.last(first);
    fit_ = sgemm() != nullptr;
    for (int i = 0; i < number; ++i) fit_ = fit_ && o.ranks[first + 1 + i] == 2 && o.last(first + 1 + i) == k_;
  }

  // Writes each product (n, m). 0, or the number of an error, oneDNN's or 1: operands do not fit each other.
  int values(int out) {
    return each_slice(number_, [&](int i, int64_t slice, int64_t slices) {
      multiply('N', 'T', n_, width(i), k_, o_[first_], k_, weight(i), k_, 0.0f, o_[out + i], slice, slices);
    });
  }

  // Of each product's gradient dy (n, m), the first operands: writes that of x and those of each W.
  int gradients(int out) {
    for (int i = 0; i < number_; ++i) fit_ = fit_ && o_.rows(i) == n_ && o_.last(i) == width(i);
    return each_slice(number_ + 1, [&](int i, int64_t slice, int64_t slices) {
      if (i) {
        const int64_t m = width(i - 1);
        multiply('T', 'N', m, k_, n_, o_[i - 1], m, o_[first_], k_, 0.0f, o_[out + i], slice, slices);
        return;
      }
      for (int each = 0; each < number_; ++each) {
        const int64_t m = width(each);
        multiply('N', 'N', n_, k_, m, o_[each], m, weight(each), k_, each ? 1.0f : 0.0f, o_[out], slice, slices);
      }
    });
  }

 private:
  int64_t width(int i) const { return o_.shapes[first_ + 1 + i][0]; }
  const float *weight(int i) const { return o_[first_ + 1 + i]; }

  // Calls work(i, slice, slices) for all slices of all i below `number`.
  template <typename Work>
  int each_slice(int number, Work work) {
    if (!fit_) return 1;
    int64_t entries = 0;  // as many as other operations do in this time
    for (int i = 0; i < number_; ++i) entries += n_ * width(i) * k_ / 128;
    const int64_t slices = std::max<int64_t>(1, std::min(Team::get().size(), entries / kLeast));
    Team::get().run(number * slices, [&](int64_t part) { work(part / slices, part % slices, slices); });
    return status_;
  }

  // One of so many slices, along the longer side, of c (m, n) = op(a) op(b) + beta c.
  void multiply(char op_a, char op_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                int64_t ldb, float beta, float *c, int64_t slice, int64_t slices) {
    const int64_t ldc = n, longer = std::max(m, n), begin = longer * slice / slices;
    const int64_t size = longer * (slice + 1) / slices - begin;
    if (m >= n) {
      a += op_a == 'T' ? begin : begin * lda;
      c += begin * ldc;
      m = size;
    } else {
      b += op_b == 'T' ? begin * ldb : begin;
      c += begin;
      n = size;
    }
    if (size) status_ |= sgemm()(op_a, op_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
  }

  const Operands &o_;
  const int first_, number_;
  int64_t n_, k_;
  bool fit_;
  std::atomic<int> status_{0};
};

// Whether all labels are columns of rows of this size.
bool all_below(const int32_t *labels, int64_t rows, int64_t size) {
  return std::all_of(labels, labels + rows, [size](int32_t label) { return label >= 0 && label < size; });
}

// 0, or 1 / (1 - probability) where the fraction of the hash is at least the probability.
inline float kept(float hash, float probability) {
  return hash - std::floor(hash) >= probability ? 1.0f / (1.0f - probability) : 0.0f;
}

// Space for one thread's numbers, kept from operation to operation.
class Scratch {
 public:
  explicit Scratch(int64_t size) {
    if (static_cast<int64_t>(space_.size()) < size) space_.resize(size);
  }

  float *take(int64_t size) {
    float *begin = space_.data() + taken_;
    taken_ += size;
    return begin;
  }

 private:
  static thread_local std::vector<float> space_;
  int64_t taken_ = 0;
};

thread_local std::vector<float> Scratch::space_;

// Attention by heads. Each head of each text is by itself; its queries are dealt with in blocks, so that their scores stay
// in a core's cache and never reach the memory. Shape letters: B texts, A heads, L tokens, D size of a head, H = A D,
// N = B L; n queries of a block. Operands, behind `first` others:
//   0 to 2 queries, keys, values (N, H) without their biases; 3 to 5 the biases (H); 6 mask (B, 1, 1, L), added to scores;
//   7 embeddings of relative positions (2 M + 1, D); 8, 9 factors of dropout's hashes (B A L, F), (L, F);
//   10 the number of heads, dropout's probability.
// An operand of rank 1 in the place of 7 or 8 and 9 means that there are none.
class Attention {
 public:
  Attention(const Operands &o, int first)
      : o_(o), first_(first), heads_(o.scalar(first + 10)), probability_(o[first + 10][1]) {
    texts_ = o.shapes[first + 6][0], length_ = o.last(first + 6);
    hidden_ = o.last(first), size_ = hidden_ / heads_;
    scale_ = 1.0f / std::sqrt(static_cast<float>(size_));
    if (o.ranks[first + 7] == 2) {
      const int64_t distance = o.shapes[first + 7][0] / 2;
      reach_ = std::min(distance, length_ - 1), width_ = 2 * reach_ + 1;
      table_ = o[first + 7] + (distance - reach_) * size_;
    }
    if (o.ranks[first + 8] == 2) features_ = o.last(first + 8);
  }

  // Writes context (N, H) and, for the gradient, each query's largest score and 1 / its sum of exponentials (B A, L, 2).
  int forward(float *context, float *sums) {
    return each_head([&](int64_t text, int64_t head) {
      const int64_t entries = length_ * size_, block = std::min(length_, kQueries);
      Scratch scratch(3 * entries + block * (2 * length_ + width_));
      float *query = scratch.take(entries), *key = scratch.take(entries), *value = scratch.take(entries);
      float *scores = scratch.take(block * length_), *kept_share = scratch.take(block * length_);
      float *by_distance = scratch.take(block * width_);
      read_head(text, head, query, key, value);
      for (int64_t begin = 0; begin < length_; begin += block) {
        const int64_t rows = std::min(block, length_ - begin), first_row = (text * heads_ + head) * length_ + begin;
        score(text, begin, rows, query, key, scores, by_distance);
        for (int64_t i = 0; i < rows; ++i) softmax(scores + i * length_, sums + 2 * (first_row + i));
        if (features_) {
          keep(first_row, rows, kept_share);
          for (int64_t i = 0; i < rows * length_; ++i) scores[i] *= kept_share[i];
        }
        float *out = context + (text * length_ + begin) * hidden_ + head * size_;
        multiply('N', 'N', rows, size_, length_, 1.0f, scores, length_, value, size_, 0.0f, out, hidden_);
        add_by_distance(scores, begin, rows, 1.0f, out, by_distance);
      }
    });
  }

  // Writes the gradients of queries, keys, values (N, H) and of their biases (H).
  int backward(const float *dout, const float *sums, float *const gradients[3], float *const biases[3]) {
    std::vector<float> of_texts(3 * texts_ * hidden_, 0.0f);
    const int status = each_head([&](int64_t text, int64_t head) {
      const int64_t entries = length_ * size_, block = std::min(length_, kQueries);
      Scratch scratch(5 * entries + block * (4 * length_ + width_));
      float *query = scratch.take(entries), *key = scratch.take(entries), *value = scratch.take(entries);
      float *dkey = scratch.take(entries), *dvalue = scratch.take(entries);
      float *shares = scratch.take(block * length_), *dshares = scratch.take(block * length_);
      float *kept_share = scratch.take(block * length_), *kept_shares = scratch.take(block * length_);
      float *by_distance = scratch.take(block * width_);
      read_head(text, head, query, key, value);
      const int64_t corner = text * length_ * hidden_ + head * size_;
      for (int64_t begin = 0; begin < length_; begin += block) {
        const int64_t rows = std::min(block, length_ - begin), first_row = (text * heads_ + head) * length_ + begin;
        const float *dy = dout + corner + begin * hidden_;
        score(text, begin, rows, query, key, shares, by_distance);
        multiply('N', 'T', rows, length_, size_, 1.0f, dy, hidden_, value, size_, 0.0f, dshares, length_);
        if (width_) {
          multiply('N', 'T', rows, width_, size_, 1.0f, dy, hidden_, table_, size_, 0.0f, by_distance, width_);
          spread(by_distance, begin, rows, dshares);
        }
        if (features_) keep(first_row, rows, kept_share);
        for (int64_t i = 0; i < rows; ++i) {
          softmax_gradient(i, sums + 2 * (first_row + i), shares, dshares, kept_share, kept_shares);
        }
        const float *used = features_ ? kept_shares : shares;
        const float more = begin ? 1.0f : 0.0f;
        multiply('T', 'N', length_, size_, rows, 1.0f, used, length_, dy, hidden_, more, dvalue, size_);
        multiply('T', 'N', length_, size_, rows, 1.0f, dshares, length_, query + begin * size_, size_, more, dkey, size_);
        float *dquery = gradients[0] + corner + begin * hidden_;
        multiply('N', 'N', rows, size_, length_, scale_, dshares, length_, key, size_, 0.0f, dquery, hidden_);
        add_by_distance(dshares, begin, rows, scale_, dquery, by_distance);
      }
      copy_rows(dkey, size_, gradients[1] + corner, hidden_);
      copy_rows(dvalue, size_, gradients[2] + corner, hidden_);
      for (int which = 0; which < 3; ++which) {
        float *total = of_texts.data() + (which * texts_ + text) * hidden_ + head * size_;
        for (int64_t i = 0; i < length_; ++i) {
          const float *row = gradients[which] + corner + i * hidden_;
          for (int64_t j = 0; j < size_; ++j) total[j] += row[j];
        }
      }
    });
    for (int which = 0; which < 3; ++which) {
      std::fill_n(biases[which], hidden_, 0.0f);
      for (int64_t text = 0; text < texts_; ++text) {
        const float *of_text = of_texts.data() + (which * texts_ + text) * hidden_;
        for (int64_t j = 0; j < hidden_; ++j) biases[which][j] += of_text[j];
      }
    }
    return status;
  }

 private:
  static constexpr int64_t kQueries = 128;  // of a block

  // Calls work(text, head) for all of them; 0, or the number of an error, oneDNN's or 1: operands do not fit each other.
  template <typename Work>
  int each_head(Work work) {
    if (!sgemm() || heads_ * size_ != hidden_ || o_.rows(first_) != texts_ * length_) return 1;
    const int64_t heads = texts_ * heads_, cost = heads * length_ * (length_ + size_);
    const int64_t parts = cost < 2 * kLeast ? 1 : std::min(heads, 4 * Team::get().size());
    Team::get().run(parts, [&](int64_t part) {
      for (int64_t i = heads * part / parts; i < heads * (part + 1) / parts; ++i) work(i / heads_, i % heads_);
    });
    return status_;
  }

  void multiply(char op_a, char op_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    status_ |= sgemm()(op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  }

  void copy_rows(const float *from, int64_t from_step, float *to, int64_t to_step) const {
    for (int64_t i = 0; i < length_; ++i) std::memcpy(to + i * to_step, from + i * from_step, size_ * sizeof(float));
  }

  // A head's queries (scaled), keys and values with their biases, (L, D) each.
  void read_head(int64_t text, int64_t head, float *query, float *key, float *value) const {
    float *const made[] = {query, key, value};
    for (int which = 0; which < 3; ++which) {
      const float *x = o_[first_ + which] + text * length_ * hidden_ + head * size_;
      const float *bias = o_[first_ + 3 + which] + head * size_, scale = which ? 1.0f : scale_;
      for (int64_t i = 0; i < length_; ++i) {
        float *row = made[which] + i * size_;
#pragma omp simd
        for (int64_t j = 0; j < size_; ++j) row[j] = (x[i * hidden_ + j] + bias[j]) * scale;
      }
    }
  }

  // Scores of a block's queries with all keys, (n, L), the mask among them.
  void score(int64_t text, int64_t begin, int64_t rows, const float *query, const float *key, float *scores,
             float *by_distance) {
    const float *of_block = query + begin * size_, *mask = o_[first_ + 6] + text * length_;
    multiply('N', 'T', rows, length_, size_, 1.0f, of_block, size_, key, size_, 0.0f, scores, length_);
    if (width_) {
      multiply('N', 'T', rows, width_, size_, 1.0f, of_block, size_, table_, size_, 0.0f, by_distance, width_);
      spread(by_distance, begin, rows, scores);
    }
    for (int64_t i = 0; i < rows; ++i) {
#pragma omp simd
      for (int64_t j = 0; j < length_; ++j) scores[i * length_ + j] += mask[j];
    }
  }

  // Adds to each entry of x (n, L) that of its distance, key's place - query's place, cut off at the table's ends.
  void spread(const float *by_distance, int64_t begin, int64_t rows, float *x) const {
    for (int64_t i = 0; i < rows; ++i) {
      const float *far = by_distance + i * width_;
      float *row = x + i * length_;
      const int64_t place = begin + i, low = std::max<int64_t>(0, place - reach_);
      const int64_t high = std::min(length_, place + reach_ + 1);
      const float *near = far + (reach_ - place);  // by the key's place
      for (int64_t j = 0; j < low; ++j) row[j] += far[0];
      for (int64_t j = low; j < high; ++j) row[j] += near[j];
      for (int64_t j = high; j < length_; ++j) row[j] += far[width_ - 1];
    }
  }

  // Adds alpha x E to y (n, D), rows hidden_ apart, where E are the embeddings of x's (n, L) distances.
  void add_by_distance(const float *x, int64_t begin, int64_t rows, float alpha, float *y, float *by_distance) {
    if (!width_) return;
    std::fill_n(by_distance, rows * width_, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      const float *row = x + i * length_;
      float *far = by_distance + i * width_;
      const int64_t place = begin + i, low = std::max<int64_t>(0, place - reach_);
      const int64_t high = std::min(length_, place + reach_ + 1);
      float *near = far + (reach_ - place);
      for (int64_t j = low; j < high; ++j) near[j] = row[j];
      for (int64_t j = 0; j < low; ++j) far[0] += row[j];
      for (int64_t j = high; j < length_; ++j) far[width_ - 1] += row[j];
    }
    multiply('N', 'N', rows, size_, width_, alpha, by_distance, width_, table_, size_, 1.0f, y, hidden_);
  }

  // 0 or 1 / (1 - probability) for each of a block's probabilities, (n, L).
  void keep(int64_t first_row, int64_t rows, float *kept_share) {
    const float *by_row = o_[first_ + 8] + first_row * features_;
    multiply('N', 'T', rows, length_, features_, 1.0f, by_row, features_, o_[first_ + 9], features_, 0.0f, kept_share,
             length_);
#pragma omp simd
    for (int64_t i = 0; i < rows * length_; ++i) kept_share[i] = kept(kept_share[i], probability_);
  }

  // Softmax of a row in its place; its largest entry and 1 / its sum of exponentials.
  void softmax(float *x, float *sums) const {
    float largest = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < length_; ++j) largest = x[j] > largest ? x[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < length_; ++j) {
      x[j] = exponential(x[j] - largest);
      sum += x[j];
    }
    const float inverse = 1.0f / sum;
#pragma omp simd
    for (int64_t j = 0; j < length_; ++j) x[j] *= inverse;
    sums[0] = largest, sums[1] = inverse;
  }

  // Of a block's query i: scores become probabilities, and the gradients of what dropout leaves of the probabilities
  // those of the scores.
  void softmax_gradient(int64_t i, const float *sums, float *shares, float *dshares, const float *kept_share,
                        float *kept_shares) const {
    shares += i * length_, dshares += i * length_, kept_share += i * length_, kept_shares += i * length_;
    const float largest = sums[0], inverse = sums[1];
#pragma omp simd
    for (int64_t j = 0; j < length_; ++j) shares[j] = exponential(shares[j] - largest) * inverse;
    if (features_) {
#pragma omp simd
      for (int64_t j = 0; j < length_; ++j) {
        kept_shares[j] = shares[j] * kept_share[j];
        dshares[j] *= kept_share[j];
      }
    }
    float total = 0.0f;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < length_; ++j) total += shares[j] * dshares[j];
#pragma omp simd
    for (int64_t j = 0; j < length_; ++j) dshares[j] = shares[j] * (dshares[j] - total);
  }

  const Operands &o_;
  const int first_;
  const int64_t heads_;
  const float probability_;
  int64_t texts_, length_, hidden_, size_, reach_ = 0, width_ = 0, features_ = 0;
  float scale_;
  const float *table_ = nullptr;
  std::atomic<int> status_{0};
};

}  // namespace

#define OPERATION(name) \
  extern "C" int name([[maybe_unused]] int count, void **data, int *ranks, int64_t **shapes, const char **, void *, void *)

// Called by src/fused_layers.py before the first operation.
extern "C" void set_threads(int threads) { Team::threads = threads; }

// x (N, C), bias (C) -> y (N, C)
OPERATION(bias_gelu) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const float *bias = o[1];
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size;
    float *y = o[2] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      const float shifted = x[j] + bias[j];
      y[j] = shifted * gate(shifted);
    }
  });
  return 0;
}

// dy (N, C), x (N, C), bias (C) -> dx (N, C), dbias (C)
OPERATION(bias_gelu_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const float *bias = o[2];
  each_row_summed(o.rows(0), size, o[4], [&](int64_t i, float *sums) {
    const float *dy = o[0] + i * size, *x = o[1] + i * size;
    float *dx = o[3] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      const float shifted = x[j] + bias[j], open = gate(shifted);
      const float slope = shifted * (kLinear + 3.0f * kCubic * shifted * shifted);
      dx[j] = dy[j] * open * (1.0f + (1.0f - open) * slope);
      sums[j] += dx[j];
    }
  });
  return 0;
}

// x (N, C), gamma (C), beta (C), epsilon (1) -> y (N, C), normal (N, C), inverse (N)
OPERATION(layer_norm) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  each_row(o.rows(0), size, [&](int64_t i) {
    float *normal = o[5] + i * size;
    std::memcpy(normal, o[0] + i * size, size * sizeof(float));
    o[6][i] = normalise(normal, o[1], o[2], o[4] + i * size, size, o.scalar(3));
  });
  return 0;
}

// x (N, C), bias (C), residual (N, C), gamma (C), beta (C), epsilon (1) -> y (N, C), normal (N, C), inverse (N)
OPERATION(add_norm) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size, *bias = o[1], *residual = o[2] + i * size;
    float *normal = o[7] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) normal[j] = x[j] + bias[j] + residual[j];
    o[8][i] = normalise(normal, o[3], o[4], o[6] + i * size, size, o.scalar(5));
  });
  return 0;
}

// Of layer_norm and add_norm:
// dy (N, C), gamma (C), normal (N, C), inverse (N) -> dx (N, C), sums (3, C): dgamma, dbeta, dbias
OPERATION(norm_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  each_row_summed(o.rows(0), 3 * size, o[5], [&](int64_t i, float *sums) {
    float *dx = o[4] + i * size, *biases = sums + 2 * size;
    normalise_gradient(o[0] + i * size, o[1], o[2] + i * size, o[3][i], dx, sums, sums + size, size);
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) biases[j] += dx[j];
  });
  return 0;
}

// The operands of Attention -> context (N, H), largest scores and inverse sums (B A, L, 2)
OPERATION(attention) {
  const Operands o{data, ranks, shapes};
  return Attention(o, 0).forward(o[11], o[12]);
}

// dcontext (N, H), the operands of Attention, attention's second result
// -> gradients of queries, keys, values (N, H) and of their biases (H)
OPERATION(attention_gradient) {
  const Operands o{data, ranks, shapes};
  float *const gradients[] = {o[13], o[14], o[15]}, *const biases[] = {o[16], o[17], o[18]};
  return Attention(o, 1).backward(o[0], o[12], gradients, biases);
}

// x (N, C), hashes (N, C), probability (1) -> y (N, C); its own gradient
OPERATION(dropout) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const float probability = o.scalar(2);
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size, *hashes = o[1] + i * size;
    float *y = o[3] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) y[j] = x[j] * kept(hashes[j], probability);
  });
  return 0;
}

// logits (N, V), labels (N) int32 -> losses (N), log of the sums (N)
OPERATION(cross_entropy) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(0);
  const int32_t *labels = static_cast<int32_t *>(data[1]);
  const bool valid = all_below(labels, o.rows(0), size);
  each_row(o.rows(0), size, [&](int64_t i) {
    const float *x = o[0] + i * size;
    float largest = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < size; ++j) largest = x[j] > largest ? x[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < size; ++j) sum += exponential(x[j] - largest);
    o[3][i] = largest + std::log(sum);
    o[2][i] = valid ? o[3][i] - x[labels[i]] : NAN;
  });
  return valid ? 0 : 1;
}

// dlosses (N), logits (N, V), labels (N) int32, log of the sums (N) -> dlogits (N, V)
OPERATION(cross_entropy_gradient) {
  const Operands o{data, ranks, shapes};
  const int64_t size = o.last(1);
  const int32_t *labels = static_cast<int32_t *>(data[2]);
  if (!all_below(labels, o.rows(1), size)) return 1;
  each_row(o.rows(1), size, [&](int64_t i) {
    const float *x = o[1] + i * size, weight = o[0][i], logarithm = o[3][i];
    float *dx = o[4] + i * size;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) dx[j] = exponential(x[j] - logarithm) * weight;
    dx[labels[i]] -= weight;
  });
  return 0;
}

// Whether attention and projections can be called.
extern "C" bool has_products() { return sgemm() != nullptr; }

// x (N, K), one or several W (M, K) -> each x W^T (N, M)
OPERATION(project) {
  const int number = (count - 1) / 2;
  return Projections(Operands{data, ranks, shapes}, 0, number).values(1 + number);
}

// dy (N, M) of each, x (N, K), each W (M, K) -> dx (N, K), each dW (M, K)
OPERATION(project_gradient) {
  const int number = (count - 2) / 3;
  return Projections(Operands{data, ranks, shapes}, number, number).gradients(2 * number + 1);
}
