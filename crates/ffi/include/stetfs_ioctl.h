/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Groups of writes on a mounted stetfs volume: what is written through several open files happens
 * as one transaction, whole or not at all, and nobody else sees it before. docs/ATOMIC.md says
 * which files can have a group; two-files.c uses one.
 *
 * COMMIT and ABORT, and BEGIN for one file alone (START), are F2FS's (linux/f2fs.h).
 */
#ifndef STETFS_IOCTL_H
#define STETFS_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* What a group is called. Nobody guesses it; who knows it may join. */
struct stetfs_group {
	__u8 name[16];
};

/*
 * What is written through this open file from now on is staged in a new group; or in the one that
 * it has begun before, which goes on. Closing the file aborts the group.
 * EBADF: it is not open for writing; EOPNOTSUPP: it can have no group; EBUSY: not while somebody has
 * it open for writing through the page cache. Before it says so it waits for a second, since
 * the server hears of a close after close(2) has returned.
 */
#define STETFS_IOC_BEGIN_GROUP _IOR(0xe7, 1, struct stetfs_group)

/*
 * What is written through this open file from now on is staged in that group. Closing the file
 * leaves what it has staged to the others.
 * ENOENT: the group is over, or never was; EBUSY: the file is in another; and as above.
 */
#define STETFS_IOC_JOIN_GROUP _IOW(0xe7, 2, struct stetfs_group)

/*
 * What is staged in the group of this open file happens, all of it, and is durable on return; no
 * file is in the group any more. Without a group it is an fsync.
 * EBUSY: another group that wrote to one of the files was committed first, ENOSPC and the like:
 * nothing has happened, and all is staged still. ECANCELED: another open file, or its end, has
 * aborted the group.
 */
#define STETFS_IOC_COMMIT_GROUP _IO(0xf5, 2)

/*
 * Nothing that is staged in the group of this open file happens. With a writeback cache the kernel
 * believes that the files have got longer; ftruncate(2) to the right size tells it (ATOMIC.md).
 */
#define STETFS_IOC_ABORT_GROUP _IO(0xf5, 5)

/*
 * What `stetfs tx` does with the layer of overlayfs that a command has written to.
 *
 * BEGIN_LAYER, of a file that is open for writing in DIR/.stetfs-tx: from now on the volume takes
 * note of who changes what, until the file is closed. One at a time: EBUSY.
 *
 * LAY_OVER, of the open directory DIR: what is in DIR/.stetfs-tx/upper, which overlayfs has mounted
 * no more, is laid over DIR, as overlayfs shows it, in one transaction that is durable on return.
 * Directories that go are in DIR/.stetfs-tx/trash then. ECANCELED: the layer's file was closed;
 * EBUSY: others have changed what the layer changes, `path` says where; EFBIG: it is more than one
 * transaction holds. Nothing has happened then.
 */
struct stetfs_lay_over {
	__u8 name[16];
	__u8 path[1008];
};

#define STETFS_IOC_BEGIN_LAYER _IOR(0xe7, 3, struct stetfs_group)
#define STETFS_IOC_LAY_OVER _IOWR(0xe7, 4, struct stetfs_lay_over)

/*
 * A layer that is not on the volume is made in DIR/.stetfs-tx/upper, an empty directory, before
 * LAY_OVER: by FILL_LAYER, of the open directory DIR, as often as it takes, with the rights of the
 * caller.
 *
 * A batch is a row of records. Behind each are its name and its data, and as many bytes as make all
 * of it a multiple of 8. It ends with a record of kind 0, or where there is no room for another.
 *
 * MAKE  makes a file in the open directory, and opens it. The data are a struct stetfs_record_file,
 *       and behind it the target of a symbolic link. The first record of all, without a name, opens
 *       the layer itself.
 * LINK  gives a file another name in the open directory: the file of that number, from 0 on, among
 *       those with `has_links`.
 * DATA  writes the data at the offset `number`; without data, the length becomes `number`.
 * XATTR gives an extended attribute to what is open: the data are its value, or, if `number` is 1,
 *       a part of it, and the next record has more.
 * DONE  says that what was opened last is done. It gets its permissions and times now.
 *
 * EINVAL: a record is not like this; ECANCELED: the layer's file was closed; otherwise as in making
 * such a file on the volume, `path` says which. Nothing of DIR itself changes.
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
