/* Two files that change together: what one account loses the other gets, or neither changes, also
 * when the power goes off. Usage: accounts IMAGE; prints both accounts. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stetfs.h"

static void check(int64_t result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s (%lld)\n", what, stetfs_message(), (long long)result);
        exit(1);
    }
}

static int64_t amount(const StetfsFile *file)
{
    int64_t amount = 0;
    check(stetfs_read(file, (uint8_t *)&amount, sizeof amount, 0), "reading");
    return amount;
}

static void stage(StetfsGroup *group, const StetfsFile *file, int64_t amount)
{
    check(stetfs_group_write(group, file, (const uint8_t *)&amount, sizeof amount, 0), "staging");
}

int main(int argc, char **argv)
{
    StetfsVolume *volume;
    StetfsFile *from, *to;
    if (argc != 2) {
        fprintf(stderr, "usage: %s IMAGE\n", argv[0]);
        return 2;
    }
    check(stetfs_open(argv[1], "scheme=stet", &volume), "opening");
    int flags = STETFS_WRITE | STETFS_CREATE;
    check(stetfs_open_file(volume, "/from", flags, 0644, &from), "opening from");
    check(stetfs_open_file(volume, "/to", flags, 0644, &to), "opening to");

    StetfsGroup *group = stetfs_begin(volume);
    stage(group, from, amount(from) - 10);
    stage(group, to, amount(to) + 10);
    check(stetfs_commit(group), "committing");

    /* What is staged and not committed never happens. */
    stage(group, from, 1000000);
    stetfs_end(group);

    printf("%lld %lld\n", (long long)amount(from), (long long)amount(to));
    check(stetfs_close_file(from), "closing");
    check(stetfs_close_file(to), "closing");
    check(stetfs_close(volume), "closing the volume");
    return 0;
}
