/* launch.c - starts a command, waits for a line of its output, and says how long that took and what memory
 * the process has. launch COUNT IDLE-MS MARKER COMMAND... COUNT times: from just before posix_spawn to the
 * moment MARKER is read from its stdout or stderr. IDLE-MS later its memory is read, and that of its first
 * child, which is the worker when it supervises one; then it gets TERM. One JSON object a start. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
enum { LIMIT_MS = 20000 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static pid_t start(char **command, int output) {
    posix_spawn_file_actions_t a;
    pid_t pid;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_adddup2(&a, output, 1);
    posix_spawn_file_actions_adddup2(&a, output, 2);
    if (posix_spawnp(&pid, command[0], &a, NULL, command, environ)) {
        perror(command[0]);
        exit(1);
    }
    posix_spawn_file_actions_destroy(&a);
    return pid;
}

/* False: the output ended, or the time did. */
static bool wait_for(int fd, const char *marker, double limit) {
    static char text[1 << 16];
    size_t len = 0;
    while (len < sizeof text - 1) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        double left = limit - now_ms();
        if (left <= 0 || poll(&p, 1, (int)left + 1) <= 0) break;
        ssize_t n = read(fd, text + len, sizeof text - 1 - len);
        if (n <= 0) break;
        len += (size_t)n;
        text[len] = 0;
        if (strstr(text, marker)) return true;
    }
    fprintf(stderr, "launch: %s did not come; it said:\n%s\n", marker, text);
    return false;
}

typedef struct memory { /* kB */
    long rss, anon, file;
} memory;

static pid_t child_of(pid_t pid) { /* 0: it has none */
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%d", &child) != 1) child = 0;
    if (f) fclose(f);
    return child;
}

static memory memory_of(pid_t pid) { /* all 0: it has ended */
    char line[256], path[64];
    memory m = {0};
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "VmRSS: %ld", &m.rss);
        sscanf(line, "RssAnon: %ld", &m.anon);
        sscanf(line, "RssFile: %ld", &m.file);
    }
    if (f) fclose(f);
    return m;
}

/* As it stands at the end of the time, or just before the process ended by itself. */
static memory memory_after(pid_t pid, double ms) {
    memory last = memory_of(pid);
    for (double until = now_ms() + ms; now_ms() < until;) {
        usleep(10000);
        memory m = memory_of(pid);
        if (!m.rss) break;
        last = m;
    }
    return last;
}

static long cpu_ms(pid_t pid) {
    char path[64];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f ||
        fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        user = system = 0;
    if (f) fclose(f);
    return (long)(user + system) * 1000 / sysconf(_SC_CLK_TCK);
}

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    int idle_ms = atoi(argv[2]);
    for (int i = 0; i < atoi(argv[1]); i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC)) return 70;
        double began = now_ms();
        pid_t pid = start(argv + 4, ends[1]);
        close(ends[1]);
        bool came = wait_for(ends[0], argv[3], began + LIMIT_MS);
        double took = now_ms() - began;
        pid_t child = child_of(pid);
        long cpu = cpu_ms(pid) + (child ? cpu_ms(child) : 0);
        memory m = memory_after(child ? child : pid, came ? idle_ms : 0);
        memory s = child ? memory_of(pid) : (memory){0};
        printf("{\"ms\":%.3f,\"cpu_ms\":%ld,\"rss_kb\":%ld,\"anon_kb\":%ld,\"file_kb\":%ld,"
               "\"supervisor_kb\":%ld,\"supervisor_anon_kb\":%ld}\n",
               took, cpu, m.rss, m.anon, m.file, s.rss, s.anon);
        fflush(stdout);
        kill(pid, SIGTERM);
        double limit = now_ms() + 3000;
        int status;
        while (waitpid(pid, &status, WNOHANG) == 0) {
            if (now_ms() > limit) kill(pid, SIGKILL);
            usleep(1000);
        }
        close(ends[0]);
        if (!came) return 1;
    }
    return 0;
}
