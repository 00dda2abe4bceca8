/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Groups of writes on a mounted stetfs volume. Writes through several open files happen as one
 * transaction, entirely or not at all, and nobody else sees them before. docs/ATOMIC.md says which
 * files can have a group; two-files.c uses one.
 *
 * COMMIT, ABORT, and BEGIN for one file alone (START) are F2FS's (linux/f2fs.h).
 */
#ifndef STETFS_IOCTL_H
#define STETFS_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* A group's name. It cannot be guessed, and everybody who knows it may join. */
struct stetfs_group {
	__u8 name[16];
};

/*
 * Begins a group, or goes on with the one that this open file has begun before. What is written
 * through the file from now on is staged. Closing the file aborts the group.
 * EBADF: the file is not open for writing; EOPNOTSUPP: it can have no group; EBUSY: somebody has it
 * open for writing through the page cache. The call waits up to a second for such writers to close,
 * since the server hears of a close after close(2) has returned.
 */
#define STETFS_IOC_BEGIN_GROUP _IOR(0xe7, 1, struct stetfs_group)

/*
 * Joins the group of that name: what is written through this open file from now on is staged in
 * it. Closing the file leaves what it has staged in the group.
 * ENOENT: the group is over, or never was; EBUSY: the file is in another group; others as above.
 */
#define STETFS_IOC_JOIN_GROUP _IOW(0xe7, 2, struct stetfs_group)

/*
 * Commits the group of this open file: everything that is staged in it happens, and is durable on
 * return. No file is in the group any more. Without a group this is an fsync.
 * EBUSY: another group that wrote to one of the files was committed first. After EBUSY, ENOSPC and
 * the like nothing has happened, and everything stays staged. ECANCELED: another open file has
 * aborted the group, or was closed and aborted it.
 */
#define STETFS_IOC_COMMIT_GROUP _IO(0xf5, 2)

/*
 * Drops what is staged in the group of this open file. With a writeback cache the kernel believes
 * that the files have grown; ftruncate(2) to the right size corrects this (ATOMIC.md).
 */
#define STETFS_IOC_ABORT_GROUP _IO(0xf5, 5)

/*
 * The calls by which `stetfs tx` commits what its command has written to a layer of overlayfs.
 *
 * BEGIN_LAYER, of a file that is open for writing in DIR/.stetfs-tx: until that file is closed, the
 * volume notes who changes what. EBUSY: there is such a layer already.
 *
 * LAY_OVER, of the open directory DIR: changes DIR to what overlayfs showed with the layer in
 * DIR/.stetfs-tx/upper, in one transaction that is durable on return. overlayfs must be unmounted.
 * Removed directories are in DIR/.stetfs-tx/trash afterwards.
 * ECANCELED: the layer's file was closed; EBUSY: others have changed what the layer changes, and
 * `path` says where; EFBIG: the layer is more than one transaction holds. After an error nothing
 * has happened.
 */
struct stetfs_lay_over {
	__u8 name[16];
	__u8 path[1008];
};

#define STETFS_IOC_BEGIN_LAYER _IOR(0xe7, 3, struct stetfs_group)
#define STETFS_IOC_LAY_OVER _IOWR(0xe7, 4, struct stetfs_lay_over)

/*
 * FILL_LAYER, of the open directory DIR: copies a layer that is not on the volume to
 * DIR/.stetfs-tx/upper, an empty directory, before LAY_OVER. Each call takes one batch of records,
 * and has the rights of its caller.
 *
 * A batch is a row of records. Each is followed by its name, by its data, and by bytes that fill it
 * up to a multiple of 8. The batch ends with a record of kind 0, or where no other record fits.
 *
 * MAKE  makes a file in the open directory, and opens it. The data are a struct stetfs_record_file,
 *       followed by the target if it is a symbolic link. The first record of all has no name, and
 *       opens the layer itself.
 * LINK  gives a file another name in the open directory. `number` counts the files that were made
 *       with `has_links`, from 0 on.
 * DATA  writes the data at the offset `number`. Without data it sets the length to `number`.
 * XATTR sets an extended attribute of what is open. The data are its value; if `number` is 1 they
 *       are a part of it, and the next record has more.
 * DONE  finishes what was opened last: sets its permissions and times.
 *
 * EINVAL: a record breaks these rules; ECANCELED: the layer's file was closed; any other error is
 * from making such a file on the volume, and `path` says which file. Nothing in DIR itself changes.
 */
struct stetfs_record {
	__u16 kind;
	__u16 name_len;
	__u32 data_len;
	__u64 number;
};

#define STETFS_RECORD_MAKE 1
#define STETFS_RECORD_LINK 2
#define STETFS_RECORD_DATA 3
#define STETFS_RECORD_XATTR 4
#define STETFS_RECORD_DONE 5

struct stetfs_record_file {
	__u32 mode;
	__u32 uid;
	__u32 gid;
	__u32 major;
	__u32 minor;
	__u32 has_links;
	__s64 atime;
	__s64 mtime;
	__u32 atime_ns;
	__u32 mtime_ns;
};

struct stetfs_fill_layer {
	__u8 name[16];
	__u8 path[1008];
	__u8 records[15344];
};

#define STETFS_IOC_FILL_LAYER _IOWR(0xe7, 5, struct stetfs_fill_layer)

#endif
