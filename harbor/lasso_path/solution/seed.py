"""A plain lasso path solver: cyclic coordinate descent in C++, warm-started along the path.

The judge reads the two constants below, compiles CPP_CODE with COMPILE_FLAGS and never runs this file.
"""

COMPILE_FLAGS: list[str] = []

CPP_CODE = r"""
// Minimises (1/2n)||y - Xw||^2 + lambda ||w||_1 for a decreasing sequence of penalties.
//
// One coefficient after the other is set to its exact minimiser while the others stay; the residual y - Xw is kept up
// to date.  Sweeps over the non-zero coefficients alternate with sweeps over all of them, until nothing moves any more.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

// A coefficient has settled when its change moves the prediction by less than this (root mean square).
constexpr double kTolerance = 1e-5;

struct Problem {
    int n = 0;
    int p = 0;
    int m = 0;
    std::vector<double> x;  // column after column
    std::vector<double> y;
    std::vector<double> lambda;
    std::vector<double> norm;  // mean square of each column

    const double *column(int j) const { return x.data() + static_cast<std::size_t>(j) * n; }
};

double dot(const double *a, const double *b, int count) {
    double sum = 0.0;
    for (int i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

bool read_values(void *to, std::size_t size, std::size_t count) { return std::fread(to, size, count, stdin) == count; }

bool read_problem(Problem &q) {
    std::int32_t size[3];
    if (!read_values(size, sizeof(std::int32_t), 3)) return false;
    q.n = size[0];
    q.p = size[1];
    q.m = size[2];
    std::vector<double> rows(static_cast<std::size_t>(q.n) * q.p);
    q.y.resize(q.n);
    q.lambda.resize(q.m);
    if (!read_values(rows.data(), sizeof(double), rows.size())) return false;
    if (!read_values(q.y.data(), sizeof(double), q.y.size())) return false;
    if (!read_values(q.lambda.data(), sizeof(double), q.lambda.size())) return false;

    q.x.resize(rows.size());
    for (int i = 0; i < q.n; ++i) {
        for (int j = 0; j < q.p; ++j) {
            q.x[static_cast<std::size_t>(j) * q.n + i] = rows[static_cast<std::size_t>(i) * q.p + j];
        }
    }
    q.norm.resize(q.p);
    for (int j = 0; j < q.p; ++j) q.norm[j] = dot(q.column(j), q.column(j), q.n) / q.n;
    return true;
}

class Solver {
  public:
    explicit Solver(const Problem &problem) : q(problem), w(problem.p, 0.0), residual(problem.y) {
        for (int j = 0; j < q.p; ++j) {
            if (q.norm[j] > 0.0) all.push_back(j);
        }
    }

    // The solution for one penalty, starting from the last one found.
    const std::vector<double> &solve(double lambda) {
        while (sweep(all, lambda) >= kTolerance) {
            std::vector<int> support;
            for (int j : all) {
                if (w[j] != 0.0) support.push_back(j);
            }
            while (sweep(support, lambda) >= kTolerance) {
            }
        }
        return w;
    }

  private:
    // Improves each listed coefficient once; returns the largest move of the prediction.
    double sweep(const std::vector<int> &list, double lambda) {
        double largest = 0.0;
        for (int j : list) {
            const double pull = dot(q.column(j), residual.data(), q.n) / q.n + q.norm[j] * w[j];
            const double size = std::max(std::fabs(pull) - lambda, 0.0) / q.norm[j];
            const double change = std::copysign(size, pull) - w[j];
            if (change == 0.0) continue;
            w[j] += change;
            for (int i = 0; i < q.n; ++i) residual[i] -= change * q.column(j)[i];
            largest = std::max(largest, std::fabs(change) * std::sqrt(q.norm[j]));
        }
        return largest;
    }

    const Problem &q;
    std::vector<double> w;
    std::vector<double> residual;
    std::vector<int> all;
};

int main() {
    Problem q;
    if (!read_problem(q)) return 1;
    Solver solver(q);
    for (double lambda : q.lambda) {
        const std::vector<double> &w = solver.solve(lambda);
        if (std::fwrite(w.data(), sizeof(double), w.size(), stdout) != w.size()) return 1;
    }
    return 0;
}
"""
