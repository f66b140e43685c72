/* number.c - decimal text to numbers and back, exactly: every double is the nearest one to its text, every
 * text reads back as the same double, and integers keep all their digits up to 64 bits.
 * The short cuts are the ones that stay exact; the rest is left to the C library, in the "C" locale because
 * a host program's setlocale must not change what JSON means. */
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/tape.h"

#define EXACT_LIMIT ((uint64_t)1 << 53) /* up to here a double holds every integer */

static const double POWER[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                               1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
static const uint64_t POWER64[] = {1ull,
                                   10ull,
                                   100ull,
                                   1000ull,
                                   10000ull,
                                   100000ull,
                                   1000000ull,
                                   10000000ull,
                                   100000000ull,
                                   1000000000ull,
                                   10000000000ull,
                                   100000000000ull,
                                   1000000000000ull,
                                   10000000000000ull,
                                   100000000000000ull,
                                   1000000000000000ull,
                                   10000000000000000ull,
                                   100000000000000000ull,
                                   1000000000000000000ull,
                                   10000000000000000000ull};
enum { POWER_MAX = 22, POWER64_MAX = 19, DIGITS64 = 19, EXPONENT_CLAMP = 100000 };

static locale_t c_locale;
__attribute__((constructor)) static void open_locale(void) {
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale) abort();
}

static inline bool is_digit(char c) { return (unsigned char)(c - '0') < 10; }

/* digits * 10^exponent, correctly rounded, for any 64-bit digits; false when the exponent is out of reach. */
static bool scale(uint64_t digits, int exponent, double *out) {
    if (digits <= EXACT_LIMIT && exponent >= -POWER_MAX && exponent <= POWER_MAX) {
        /* both operands are exact, so one operation rounds once */
        *out = exponent < 0 ? (double)digits / POWER[-exponent] : (double)digits * POWER[exponent];
        return true;
    }
    if (exponent < -POWER64_MAX || exponent > POWER64_MAX) return false;
    if (exponent >= 0) {
        *out = (double)((unsigned __int128)digits * POWER64[exponent]); /* the conversion rounds, once */
        return true;
    }
    /* At least 63 bits of quotient, the lowest of them sticky: more than the rounding to 53 needs. */
    int shift = 64 + __builtin_clzll(digits);
    unsigned __int128 n = (unsigned __int128)digits << shift, q = n / POWER64[-exponent];
    if (q * POWER64[-exponent] != n) q |= 1;
    *out = ldexp((double)q, -shift);
    return true;
}

static void integer_cell(const char *start, uint64_t m, size_t digits, bool negative,
                         struct mw_json_cell *cell) {
    if (m <= EXACT_LIMIT && digits <= DIGITS64) {
        cell->type = MW_JSON_NUMBER;
        cell->number = negative ? -(double)m : (double)m; /* "-0" stays negative */
        return;
    }
    bool fits = digits <= DIGITS64;
    if (digits == DIGITS64 + 1) { /* 20 digits may fit in 64 bits: add the last one with care */
        m = 0;
        fits = true;
        for (const char *p = start + negative; is_digit(*p) && fits; p++)
            fits = !__builtin_mul_overflow(m, (uint64_t)10, &m) &&
                   !__builtin_add_overflow(m, (uint64_t)(*p - '0'), &m);
    }
    if (fits && m <= (uint64_t)INT64_MAX + negative) {
        cell->type = MW_JSON_INT64;
        cell->integer = negative ? (int64_t)(0 - m) : (int64_t)m;
    } else if (fits && !negative) {
        cell->type = MW_JSON_UINT64;
        cell->integer = (int64_t)m;
    } else {
        cell->type = MW_JSON_NUMBER;
        cell->number = strtod_l(start, NULL, c_locale);
    }
}

#define FAIL(where, text) return *at = (where), *what = (text), NULL

const char *mw_json_number_scan(const char *p, struct mw_json_cell *cell, const char **at,
                                const char **what) {
    const char *start = p, *part;
    bool negative = *p == '-';
    uint64_t m = 0; /* wraps past 19 digits; then it is not used */
    p += negative;
    part = p;
    if (!is_digit(*p)) FAIL(p, "expected a digit after '-'");
    do m = m * 10 + (uint64_t)(*p++ - '0');
    while (is_digit(*p));
    size_t digits = (size_t)(p - part);
    if (*part == '0' && digits > 1) FAIL(part, "a number must not begin with 0");
    if (*p != '.' && (*p | 0x20) != 'e') {
        integer_cell(start, m, digits, negative, cell);
        if (cell->type == MW_JSON_NUMBER && isinf(cell->number)) FAIL(start, "number out of range");
        return p;
    }
    int64_t exponent = 0;
    if (*p == '.') {
        part = ++p;
        if (!is_digit(*p)) FAIL(p, "expected a digit after the decimal point");
        do m = m * 10 + (uint64_t)(*p++ - '0');
        while (is_digit(*p));
        exponent = -(p - part);
        digits += (size_t)(p - part);
    }
    if ((*p | 0x20) == 'e') {
        int64_t e = 0;
        bool down = *++p == '-';
        if (*p == '-' || *p == '+') p++;
        if (!is_digit(*p)) FAIL(p, "expected a digit in the exponent");
        for (; is_digit(*p); p++)
            if (e < EXPONENT_CLAMP) e = e * 10 + (*p - '0');
        exponent += down ? -e : e;
    }
    cell->type = MW_JSON_NUMBER;
    if (digits <= DIGITS64 && exponent >= -POWER_MAX && exponent <= POWER_MAX &&
        scale(m, (int)exponent, &cell->number)) {
        if (negative) cell->number = -cell->number;
        return p;
    }
    cell->number = strtod_l(start, NULL, c_locale);
    if (isinf(cell->number)) FAIL(start, "number out of range");
    return p;
}

int mw_json_unsigned_print(uint64_t x, char out[MW_JSON_NUMBER_TEXT]) {
    char digits[20];
    int n = 0, len = 0;
    do digits[n++] = (char)('0' + x % 10);
    while (x /= 10);
    while (n) out[len++] = digits[--n];
    return len;
}

/* Prices and measures: the least number of decimals that divides back to the same double. The division is
 * the one mw_json_number_scan does, so the text reads back right by construction. */
static int print_decimals(double x, char *out) {
    for (int k = 1; k <= POWER_MAX; k++) {
        double scaled = x * POWER[k];
        if (scaled > (double)EXACT_LIMIT) return 0;
        uint64_t whole = (uint64_t)(scaled + 0.5);
        if ((double)whole / POWER[k] != x) continue;
        char digits[MW_JSON_NUMBER_TEXT];
        int n = mw_json_unsigned_print(whole, digits), lead = n > k ? n - k : 0, len = lead;
        memcpy(out, digits, (size_t)lead);
        if (!lead) out[len++] = '0';
        out[len++] = '.';
        for (int i = n; i < k; i++) out[len++] = '0';
        memcpy(out + len, digits + lead, (size_t)(n - lead));
        return len + n - lead;
    }
    return 0;
}

int mw_json_number_print(double x, char out[MW_JSON_NUMBER_TEXT]) {
    int sign = 0, len;
    if (signbit(x)) {
        out[sign++] = '-';
        x = -x;
    }
    if (x < 9223372036854775808.0 && x == (double)(uint64_t)x)
        return sign + mw_json_unsigned_print((uint64_t)x, out + sign);
    if (x >= 1e-5 && x < 1e15 && (len = print_decimals(x, out + sign))) return sign + len;
    /* 15 digits are never too many, except for the numbers below DBL_MIN, which have fewer bits */
    for (int precision = x < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        len = snprintf(out + sign, MW_JSON_NUMBER_TEXT - (size_t)sign, "%.*g", precision, x);
        for (int i = sign; i < sign + len; i++) /* the process's locale may write a comma */
            if (!is_digit(out[i]) && out[i] != 'e' && out[i] != '+' && out[i] != '-') out[i] = '.';
        if (strtod_l(out + sign, NULL, c_locale) == x) break;
    }
    return sign + len;
}
