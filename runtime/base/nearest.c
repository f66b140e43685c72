#include "base/nearest.h"

#include <limits.h>
#include <string.h>

enum { LONGEST = 64 };

/* Edit distance with swapped neighbours counted once (optimal string alignment). */
static int distance(const char *a, const char *b) {
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > LONGEST || m > LONGEST) return INT_MAX;
    int rows[3][LONGEST + 1];
    for (int j = 0; j <= m; j++) rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *row = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best) best = up[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[n % 3][m];
}

const char *mw_nearest(const char *word, const char *const *list) {
    const char *found = NULL;
    int best = (int)strlen(word) / 2 + 1; /* half of it wrong is another word */
    for (; *list; list++) {
        int d = distance(word, *list);
        if (d < best) {
            best = d;
            found = *list;
        }
    }
    return found;
}
