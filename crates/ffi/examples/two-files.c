/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Writes the same words to two files: to both or to none, whatever happens in between.
 *
 *     cc -I crates/ffi/include -o two-files crates/ffi/examples/two-files.c
 *     ./two-files mnt/a mnt/b "the words"
 */
#include <err.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "stetfs_ioctl.h"

static void write_all(int fd, const char *words)
{
	size_t len = strlen(words);

	while (len > 0) {
		ssize_t n = write(fd, words, len);

		if (n < 0)
			err(EXIT_FAILURE, "write");
		words += n;
		len -= n;
	}
}

int main(int argc, char **argv)
{
	struct stetfs_group group;
	int a, b;

	if (argc != 4)
		errx(EXIT_FAILURE, "usage: two-files FILE FILE WORDS");
	a = open(argv[1], O_WRONLY);
	b = open(argv[2], O_WRONLY);
	if (a < 0 || b < 0)
		err(EXIT_FAILURE, "open");
	if (ioctl(a, STETFS_IOC_BEGIN_GROUP, &group) != 0)
		err(EXIT_FAILURE, "%s: no group", argv[1]);
	if (ioctl(b, STETFS_IOC_JOIN_GROUP, &group) != 0)
		err(EXIT_FAILURE, "%s: no group", argv[2]);
	/* From here on whoever fails exits, and the group is gone with its files. */
	write_all(a, argv[3]);
	write_all(b, argv[3]);
	if (ioctl(a, STETFS_IOC_COMMIT_GROUP) != 0)
		err(EXIT_FAILURE, "commit");
	return EXIT_SUCCESS;
}
