// ---- time ----------------------------------------------------------------------------------------------------------

// A fixed amount of work makes runs repeatable; the clock only guards against slow machines.
class Budget {
public:
    void spend(long long work) { used_ += work; }
    bool spent(double share = 1.0) const { return progress() >= share; }
    double progress() const {
        const double seconds = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
        return std::max(static_cast<double>(used_) / kWork, seconds / kSeconds);
    }

private:
    static constexpr double kWork = 1.0e7;
    static constexpr double kSeconds = 1.0;

    long long used_ = 0;
};

Budget budget;

//@if random
class Random {
public:
    std::uint64_t next() {
        state_ ^= state_ << 7;
        state_ ^= state_ >> 9;
        return state_;
    }
    int below(int limit) { return static_cast<int>(next() % static_cast<std::uint64_t>(limit)); }
    double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

private:
    std::uint64_t state_ = 0x9E3779B97F4A7C15ULL;
};

Random dice;

//@endif
