/* stetfs for C: made from crates/ffi/src/c.rs by its test.
 *
 * What functions return: those of type int or int64_t give 0 or a count when they succeed, and a
 * negative error number of Linux's errno.h when they fail (-ENOENT, -ENOSPC); stetfs_message()
 * says then why, in words. Pointers that they are to fill are filled only on success. errno is left
 * alone. Paths begin at the volume's root, with or without a slash; names need not be UTF-8.
 * Everything is done as root: no permission is checked.
 */

#ifndef STETFS_H
#define STETFS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/**
 * Open for writing too; without it for reading.
 */
#define STETFS_WRITE 1

/**
 * Make the file if it is not there.
 */
#define STETFS_CREATE 2

/**
 * With `STETFS_CREATE`: it must not be there.
 */
#define STETFS_EXCLUSIVE 4

/**
 * Cut it to length 0.
 */
#define STETFS_TRUNCATE 8

/**
 * Bytes of the longest name with the 0 behind it.
 */
#define STETFS_NAME_SIZE 256

/**
 * An open file of a volume. Several threads may use it.
 */
typedef struct StetfsFile StetfsFile;

/**
 * Changes that become one transaction. One thread at a time uses it.
 */
typedef struct StetfsGroup StetfsGroup;

/**
 * A mounted volume. Several threads may use it.
 */
typedef struct StetfsVolume StetfsVolume;

/**
 * A point in time.
 */
typedef struct {
  /**
   * Seconds since 1970.
   */
  int64_t seconds;
  /**
   * Nanoseconds of the second, less than 1000000000.
   */
  uint32_t nanoseconds;
} StetfsTime;

/**
 * What is known of a file, as stat(2) has it.
 */
typedef struct {
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * Length in bytes.
   */
  uint64_t size;
  /**
   * Space in units of 512 bytes.
   */
  uint64_t blocks;
  /**
   * File type and permissions (`S_IFDIR | 0755`).
   */
  uint32_t mode;
  /**
   * Number of names.
   */
  uint32_t nlink;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * Of a device file.
   */
  uint32_t major;
  /**
   * Of a device file.
   */
  uint32_t minor;
  /**
   * Last access.
   */
  StetfsTime atime;
  /**
   * Last change of the content.
   */
  StetfsTime mtime;
  /**
   * Last change of the inode.
   */
  StetfsTime ctime;
  /**
   * Creation; 0 where the volume has no room for it.
   */
  StetfsTime crtime;
} StetfsStat;

/**
 * A name in a directory.
 */
typedef struct {
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * File type as `d_type` of readdir(3) has it: 4 a directory, 8 a regular file, 10 a symbolic
   * link, 0 unknown.
   */
  uint8_t kind;
  /**
   * The name, ended by a 0.
   */
  uint8_t name[STETFS_NAME_SIZE];
} StetfsEntry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Why the last call of this thread failed, in words. Good until the next one fails.
 */
const char *stetfs_message(void);

/**
 * Opens the volume in a file or block device and keeps everybody else out, with mount options as
 * `stetfs mount -o` takes them (NULL: none). What a crash has left is recovered.
 *
 * # Safety
 * `image` and `options` are strings, `out` is a pointer's place.
 */
int stetfs_open(const char *image, const char *options, StetfsVolume **out);

/**
 * Makes everything durable, leaves a clean volume and frees it, also when it fails: then the next
 * open recovers what was confirmed. Its files and groups must be closed before.
 *
 * # Safety
 * Nobody uses the volume any more.
 */
int stetfs_close(StetfsVolume *volume);

/**
 * Returns when everything that was done before is durable.
 *
 * # Safety
 * The volume is open.
 */
int stetfs_sync(const StetfsVolume *volume);

/**
 * Makes a directory.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_mkdir(const StetfsVolume *volume, const char *path, uint16_t mode);

/**
 * Removes a name of something that is no directory.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_unlink(const StetfsVolume *volume, const char *path);

/**
 * Renames; what had the new name is gone.
 *
 * # Safety
 * The volume is open, both paths are strings.
 */
int stetfs_rename(const StetfsVolume *volume, const char *from, const char *to);

/**
 * Opens a file by its path from the root, with `STETFS_...` flags; a new one gets `mode`.
 *
 * # Safety
 * The volume is open, `path` is a string, `out` is a pointer's place.
 */
int stetfs_open_file(const StetfsVolume *volume,
                     const char *path,
                     int flags,
                     uint16_t mode,
                     StetfsFile **out);

/**
 * Closes a file. What was written and not synced is kept, and may be lost in a crash.
 *
 * # Safety
 * Nobody uses the file any more.
 */
int stetfs_close_file(StetfsFile *file);

/**
 * Reads; how many bytes there were before the file's end.
 *
 * # Safety
 * The file is open, `out` has `len` bytes.
 */
int64_t stetfs_read(const StetfsFile *file, uint8_t *out, uintptr_t len, uint64_t offset);

/**
 * Writes; how many bytes, which are fewer on a full volume. Durable after `stetfs_fsync`.
 *
 * # Safety
 * The file is open for writing, `from` has `len` bytes.
 */
int64_t stetfs_write(const StetfsFile *file, const uint8_t *from, uintptr_t len, uint64_t offset);

/**
 * Returns when the file's changes are durable, its name among them.
 *
 * # Safety
 * The file is open.
 */
int stetfs_fsync(const StetfsFile *file);

/**
 * Makes the file so long.
 *
 * # Safety
 * The file is open for writing.
 */
int stetfs_truncate(const StetfsFile *file, uint64_t size);

/**
 * The file's length in bytes.
 *
 * # Safety
 * The file is open.
 */
int64_t stetfs_size(const StetfsFile *file);

/**
 * Begins a group of changes of this volume, which nobody else sees before it is committed and
 * which then happen as one transaction. The data of existing files that are written in it must be
 * journaled (`data=journal`, `atomic=all`, or a scheme that journals all data).
 *
 * # Safety
 * The volume is open.
 */
StetfsGroup *stetfs_begin(const StetfsVolume *volume);

/**
 * Stages all of the bytes, or nothing of them: -EFBIG when one transaction does not hold them,
 * -ENOSPC on a full volume. What was staged before stays staged.
 *
 * # Safety
 * Group and file are open and of one volume, `from` has `len` bytes.
 */
int stetfs_group_write(StetfsGroup *group,
                       const StetfsFile *file,
                       const uint8_t *from,
                       uintptr_t len,
                       uint64_t offset);

/**
 * Reads as the file will be; how many bytes there will be before its end.
 *
 * # Safety
 * Group and file are open and of one volume, `out` has `len` bytes.
 */
int64_t stetfs_group_read(const StetfsGroup *group,
                          const StetfsFile *file,
                          uint8_t *out,
                          uintptr_t len,
                          uint64_t offset);

/**
 * Makes the file so long when the group is committed.
 *
 * # Safety
 * Group and file are open.
 */
int stetfs_group_truncate(StetfsGroup *group, const StetfsFile *file, uint64_t size);

/**
 * Makes a file, which others find when the group is committed, and opens it for writing. What is
 * written to it, with or without the group, need not fit into a transaction. Paths in a group are
 * as the group sees them.
 *
 * # Safety
 * The group is open, `path` is a string, `out` is a pointer's place.
 */
int stetfs_group_create(StetfsGroup *group, const char *path, uint16_t mode, StetfsFile **out);

/**
 * Makes a directory.
 *
 * # Safety
 * The group is open, `path` is a string.
 */
int stetfs_group_mkdir(StetfsGroup *group, const char *path, uint16_t mode);

/**
 * Makes a symbolic link at `path`.
 *
 * # Safety
 * The group is open, both are strings.
 */
int stetfs_group_symlink(StetfsGroup *group, const char *target, const char *path);

/**
 * Gives the file at `from`, which is no directory, one more name.
 *
 * # Safety
 * The group is open, both paths are strings.
 */
int stetfs_group_link(StetfsGroup *group, const char *from, const char *to);

/**
 * Removes a name of something that is no directory.
 *
 * # Safety
 * The group is open, `path` is a string.
 */
int stetfs_group_unlink(StetfsGroup *group, const char *path);

/**
 * Removes a directory that is empty then.
 *
 * # Safety
 * The group is open, `path` is a string.
 */
int stetfs_group_rmdir(StetfsGroup *group, const char *path);

/**
 * Renames; what had the new name is gone.
 *
 * # Safety
 * The group is open, both paths are strings.
 */
int stetfs_group_rename(StetfsGroup *group, const char *from, const char *to);

/**
 * Sets an extended attribute of what the path names itself; `flags` as for setxattr(2).
 *
 * # Safety
 * The group is open, path and name are strings, `value` has `len` bytes.
 */
int stetfs_group_setxattr(StetfsGroup *group,
                          const char *path,
                          const char *name,
                          const uint8_t *value,
                          uintptr_t len,
                          int flags);

/**
 * Removes an extended attribute of what the path names itself.
 *
 * # Safety
 * The group is open, path and name are strings.
 */
int stetfs_group_removexattr(StetfsGroup *group, const char *path, const char *name);

/**
 * Reads an extended attribute of what the path names itself, as the group sees it; gives how long
 * it is. With a `len` of 0 that is all.
 *
 * # Safety
 * The group is open, path and name are strings, `out` has `len` bytes.
 */
int64_t stetfs_group_getxattr(StetfsGroup *group,
                              const char *path,
                              const char *name,
                              uint8_t *out,
                              uintptr_t len);

/**
 * Reads the names of extended attributes, each ended by a 0, as `stetfs_group_getxattr` a value.
 *
 * # Safety
 * The group is open, the path is a string, `out` has `len` bytes.
 */
int64_t stetfs_group_listxattr(StetfsGroup *group, const char *path, uint8_t *out, uintptr_t len);

/**
 * Makes all of it happen, durable on return; the group is empty then and can be used again. On
 * failure nothing has happened and everything is still staged (-EBUSY: somebody has changed
 * meanwhile what the group changes, a file by another group or a name), unless the device has
 * failed.
 *
 * # Safety
 * The group is open.
 */
int stetfs_commit(StetfsGroup *group);

/**
 * Forgets what is staged, and frees the group.
 *
 * # Safety
 * Nobody uses the group any more.
 */
void stetfs_end(StetfsGroup *group);

/**
 * Says what the path names; with `follow` other than 0, what a symbolic link at its end leads to.
 *
 * # Safety
 * The volume is open, `path` is a string, `out` is a place for one.
 */
int stetfs_stat(const StetfsVolume *volume, const char *path, int follow, StetfsStat *out);

/**
 * The next name in a directory: 1 if there is one, 0 at the end. `cookie` says where to go on: 0
 * at first, then what the call before has left there. "." and ".." are among the names. What is
 * made and removed meanwhile may be missing or not; everything else comes once.
 *
 * # Safety
 * The volume is open, `path` is a string, `cookie` and `out` are places.
 */
int stetfs_readdir(const StetfsVolume *volume,
                   const char *path,
                   uint64_t *cookie,
                   StetfsEntry *out);

/**
 * Removes an empty directory.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_rmdir(const StetfsVolume *volume, const char *path);

/**
 * Makes a symbolic link at `path`.
 *
 * # Safety
 * The volume is open, both are strings.
 */
int stetfs_symlink(const StetfsVolume *volume, const char *target, const char *path);

/**
 * Reads where a symbolic link leads; gives how long that is, without a 0 behind it. With a `len`
 * of 0 that is all.
 *
 * # Safety
 * The volume is open, `path` is a string, `out` has `len` bytes.
 */
int64_t stetfs_readlink(const StetfsVolume *volume, const char *path, uint8_t *out, uintptr_t len);

/**
 * Gives the file at `from`, which is no directory, one more name.
 *
 * # Safety
 * The volume is open, both paths are strings.
 */
int stetfs_link(const StetfsVolume *volume, const char *from, const char *to);

/**
 * Sets the permissions, at most 07777, of what the path leads to.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_chmod(const StetfsVolume *volume, const char *path, uint16_t mode);

/**
 * Sets the owner and the group of what the path names itself; -1 leaves one as it is.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_chown(const StetfsVolume *volume, const char *path, uint32_t uid, uint32_t gid);

/**
 * Sets the times of the last access and of the last change of the content of what the path leads
 * to; NULL leaves one as it is.
 *
 * # Safety
 * The volume is open, `path` is a string, the times are NULL or times.
 */
int stetfs_utimes(const StetfsVolume *volume,
                  const char *path,
                  const StetfsTime *atime,
                  const StetfsTime *mtime);

/**
 * Sets an extended attribute of what the path names itself; `flags` as for setxattr(2).
 *
 * # Safety
 * The volume is open, path and name are strings, `value` has `len` bytes.
 */
int stetfs_setxattr(const StetfsVolume *volume,
                    const char *path,
                    const char *name,
                    const uint8_t *value,
                    uintptr_t len,
                    int flags);

/**
 * Removes an extended attribute of what the path names itself.
 *
 * # Safety
 * The volume is open, path and name are strings.
 */
int stetfs_removexattr(const StetfsVolume *volume, const char *path, const char *name);

/**
 * Reads an extended attribute of what the path names itself; gives how long it is. With a `len` of
 * 0 that is all.
 *
 * # Safety
 * The volume is open, path and name are strings, `out` has `len` bytes.
 */
int64_t stetfs_getxattr(const StetfsVolume *volume,
                        const char *path,
                        const char *name,
                        uint8_t *out,
                        uintptr_t len);

/**
 * Reads the names of extended attributes, each ended by a 0, as `stetfs_getxattr` a value.
 *
 * # Safety
 * The volume is open, the path is a string, `out` has `len` bytes.
 */
int64_t stetfs_listxattr(const StetfsVolume *volume, const char *path, uint8_t *out, uintptr_t len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STETFS_H */
