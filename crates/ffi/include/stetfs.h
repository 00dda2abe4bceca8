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
 * Open for reading and writing. Without this flag: for reading.
 */
#define STETFS_WRITE 1

/**
 * Create the file if it does not exist.
 */
#define STETFS_CREATE 2

/**
 * With `STETFS_CREATE`: fail with -EEXIST if the file exists.
 */
#define STETFS_EXCLUSIVE 4

/**
 * Truncate the file to length 0.
 */
#define STETFS_TRUNCATE 8

/**
 * Bytes of the longest name and the 0 behind it.
 */
#define STETFS_NAME_SIZE 256

/**
 * An open file of a volume. Several threads may use it at once.
 */
typedef struct StetfsFile StetfsFile;

/**
 * Changes that become one transaction. Only one thread at a time may use it.
 */
typedef struct StetfsGroup StetfsGroup;

/**
 * A mounted volume. Several threads may use it at once.
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
   * Nanoseconds of the second, below 1000000000.
   */
  uint32_t nanoseconds;
} StetfsTime;

/**
 * The attributes of a file, as stat(2) gives them.
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
   * Allocated space in units of 512 bytes.
   */
  uint64_t blocks;
  /**
   * File type and permissions (`S_IFDIR | 0755`).
   */
  uint32_t mode;
  /**
   * Number of names (hard links).
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
   * Major number of a device file.
   */
  uint32_t major;
  /**
   * Minor number of a device file.
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
 * An entry of a directory.
 */
typedef struct {
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * File type, as `d_type` of readdir(3): 4 a directory, 8 a regular file, 10 a symbolic link, 0
   * unknown.
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
 * Returns why the last failed call of this thread failed, in words. The string is valid until the
 * next failure in this thread.
 */
const char *stetfs_message(void);

/**
 * Opens the volume in a file or block device and locks it against everybody else. `options` are
 * mount options as `stetfs mount -o` takes them (NULL: none). Recovers the volume after a crash.
 *
 * # Safety
 * `image` is a string, `options` a string or NULL, `out` points to a pointer.
 */
int stetfs_open(const char *image, const char *options, StetfsVolume **out);

/**
 * Closes a volume: makes everything durable, leaves the volume clean and frees it. It is freed on
 * failure too; then the next open recovers everything that was confirmed. Close its files and
 * groups first. NULL does nothing.
 *
 * # Safety
 * Nobody uses the volume any more.
 */
int stetfs_close(StetfsVolume *volume);

/**
 * Makes everything durable that was done before. Returns when it is.
 *
 * # Safety
 * The volume is open.
 */
int stetfs_sync(const StetfsVolume *volume);

/**
 * Creates a directory.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_mkdir(const StetfsVolume *volume, const char *path, uint16_t mode);

/**
 * Removes a name of a file that is no directory.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_unlink(const StetfsVolume *volume, const char *path);

/**
 * Renames `from` to `to`. Replaces a file that has the name `to`.
 *
 * # Safety
 * The volume is open, both paths are strings.
 */
int stetfs_rename(const StetfsVolume *volume, const char *from, const char *to);

/**
 * Opens a file by its path. `flags` are `STETFS_...` flags. A new file gets the permissions
 * `mode`.
 *
 * # Safety
 * The volume is open, `path` is a string, `out` points to a pointer.
 */
int stetfs_open_file(const StetfsVolume *volume,
                     const char *path,
                     int flags,
                     uint16_t mode,
                     StetfsFile **out);

/**
 * Closes a file. Data that was written and not synced stays in the file, but a crash may lose it.
 * NULL does nothing.
 *
 * # Safety
 * Nobody uses the file any more.
 */
int stetfs_close_file(StetfsFile *file);

/**
 * Reads up to `len` bytes at `offset`. Returns how many it read: fewer only at the file's end.
 *
 * # Safety
 * The file is open, `out` has `len` bytes.
 */
int64_t stetfs_read(const StetfsFile *file, uint8_t *out, uintptr_t len, uint64_t offset);

/**
 * Writes `len` bytes at `offset`. Returns how many it wrote: fewer on a full volume. They are
 * durable after `stetfs_fsync`.
 *
 * # Safety
 * The file is open for writing, `from` has `len` bytes.
 */
int64_t stetfs_write(const StetfsFile *file, const uint8_t *from, uintptr_t len, uint64_t offset);

/**
 * Makes the file's changes durable, also its name. Returns when they are.
 *
 * # Safety
 * The file is open.
 */
int stetfs_fsync(const StetfsFile *file);

/**
 * Sets the file's length to `size` bytes.
 *
 * # Safety
 * The file is open for writing.
 */
int stetfs_truncate(const StetfsFile *file, uint64_t size);

/**
 * Returns the file's length in bytes.
 *
 * # Safety
 * The file is open.
 */
int64_t stetfs_size(const StetfsFile *file);

/**
 * Begins a group of changes. `stetfs_commit` makes them one transaction; nobody else sees them
 * before. The data of existing files that the group writes must be journaled (`data=journal`,
 * `atomic=all`, or a scheme that journals all data).
 *
 * # Safety
 * The volume is open.
 */
StetfsGroup *stetfs_begin(const StetfsVolume *volume);

/**
 * Stages a write: all of the bytes, or none on failure. -EFBIG: one transaction cannot hold them;
 * -ENOSPC: the volume is full. What was staged before stays staged.
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
 * Reads the file as it will be after the commit. Returns how many bytes it read: fewer than `len`
 * only at the end that the file will have.
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
 * Stages a new length of the file: `size` bytes.
 *
 * # Safety
 * Group and file are open.
 */
int stetfs_group_truncate(StetfsGroup *group, const StetfsFile *file, uint64_t size);

/**
 * Creates a file and opens it for reading and writing. Others find it once the group is committed.
 * Writes to it, with or without the group, need not fit into a transaction. The functions of a
 * group take paths as the group sees them.
 *
 * # Safety
 * The group is open, `path` is a string, `out` points to a pointer.
 */
int stetfs_group_create(StetfsGroup *group, const char *path, uint16_t mode, StetfsFile **out);

/**
 * Creates a directory.
 *
 * # Safety
 * The group is open, `path` is a string.
 */
int stetfs_group_mkdir(StetfsGroup *group, const char *path, uint16_t mode);

/**
 * Creates a symbolic link at `path` that leads to `target`.
 *
 * # Safety
 * The group is open, both are strings.
 */
int stetfs_group_symlink(StetfsGroup *group, const char *target, const char *path);

/**
 * Gives the file at `from` one more name, `to`. `from` may be no directory.
 *
 * # Safety
 * The group is open, both paths are strings.
 */
int stetfs_group_link(StetfsGroup *group, const char *from, const char *to);

/**
 * Removes a name of a file that is no directory.
 *
 * # Safety
 * The group is open, `path` is a string.
 */
int stetfs_group_unlink(StetfsGroup *group, const char *path);

/**
 * Removes a directory, which must be empty as the group sees it.
 *
 * # Safety
 * The group is open, `path` is a string.
 */
int stetfs_group_rmdir(StetfsGroup *group, const char *path);

/**
 * Renames `from` to `to`. Replaces a file that has the name `to`.
 *
 * # Safety
 * The group is open, both paths are strings.
 */
int stetfs_group_rename(StetfsGroup *group, const char *from, const char *to);

/**
 * Sets an extended attribute. Does not follow a symbolic link at the end of `path`. `flags` are
 * those of setxattr(2).
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
 * Removes an extended attribute. Does not follow a symbolic link at the end of `path`.
 *
 * # Safety
 * The group is open, path and name are strings.
 */
int stetfs_group_removexattr(StetfsGroup *group, const char *path, const char *name);

/**
 * Reads an extended attribute as the group sees it, and returns its length. A `len` of 0 asks for
 * the length alone; -ERANGE: `out` is too short. Does not follow a symbolic link at the end of
 * `path`.
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
 * Lists the names of the extended attributes, each ended by a 0, and returns their length
 * together. `len` and symbolic links are as in `stetfs_group_getxattr`.
 *
 * # Safety
 * The group is open, the path is a string, `out` has `len` bytes.
 */
int64_t stetfs_group_listxattr(StetfsGroup *group, const char *path, uint8_t *out, uintptr_t len);

/**
 * Commits the group: all of its changes happen, and are durable on return. Then the group is empty
 * and can be used again. On failure nothing has happened and everything stays staged, unless the
 * device has failed. -EBUSY: somebody has meanwhile changed a name, or by another group a file,
 * that this group changes.
 *
 * # Safety
 * The group is open.
 */
int stetfs_commit(StetfsGroup *group);

/**
 * Drops what is staged and frees the group. NULL does nothing.
 *
 * # Safety
 * Nobody uses the group any more.
 */
void stetfs_end(StetfsGroup *group);

/**
 * Reads the attributes of what `path` names. Follows a symbolic link at its end if `follow` is not
 * 0.
 *
 * # Safety
 * The volume is open, `path` is a string, `out` points to a `StetfsStat`.
 */
int stetfs_stat(const StetfsVolume *volume, const char *path, int follow, StetfsStat *out);

/**
 * Reads the next entry of a directory. Returns 1 if there is one, 0 at the end. `*cookie` is 0 at
 * first; each call leaves there where the next one goes on. "." and ".." are entries too. Names
 * that are created or removed meanwhile may be missing; every other name comes once.
 *
 * # Safety
 * The volume is open, `path` is a string, `cookie` and `out` point to values of their types.
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
 * Creates a symbolic link at `path` that leads to `target`.
 *
 * # Safety
 * The volume is open, both are strings.
 */
int stetfs_symlink(const StetfsVolume *volume, const char *target, const char *path);

/**
 * Reads the target of a symbolic link, without a 0 behind it, and returns its length. A `len` of 0
 * asks for the length alone; -ERANGE: `out` is too short.
 *
 * # Safety
 * The volume is open, `path` is a string, `out` has `len` bytes.
 */
int64_t stetfs_readlink(const StetfsVolume *volume, const char *path, uint8_t *out, uintptr_t len);

/**
 * Gives the file at `from` one more name, `to`. `from` may be no directory.
 *
 * # Safety
 * The volume is open, both paths are strings.
 */
int stetfs_link(const StetfsVolume *volume, const char *from, const char *to);

/**
 * Sets the permissions, at most 07777. Follows a symbolic link at the end of `path`.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_chmod(const StetfsVolume *volume, const char *path, uint16_t mode);

/**
 * Sets the owner and the group; -1 leaves one as it is. Does not follow a symbolic link at the end
 * of `path`.
 *
 * # Safety
 * The volume is open, `path` is a string.
 */
int stetfs_chown(const StetfsVolume *volume, const char *path, uint32_t uid, uint32_t gid);

/**
 * Sets the times of the last access and of the last change of the content; NULL leaves one as it
 * is. Follows a symbolic link at the end of `path`.
 *
 * # Safety
 * The volume is open, `path` is a string, the times are NULL or times.
 */
int stetfs_utimes(const StetfsVolume *volume,
                  const char *path,
                  const StetfsTime *atime,
                  const StetfsTime *mtime);

/**
 * Sets an extended attribute. Does not follow a symbolic link at the end of `path`. `flags` are
 * those of setxattr(2).
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
 * Removes an extended attribute. Does not follow a symbolic link at the end of `path`.
 *
 * # Safety
 * The volume is open, path and name are strings.
 */
int stetfs_removexattr(const StetfsVolume *volume, const char *path, const char *name);

/**
 * Reads an extended attribute and returns its length. A `len` of 0 asks for the length alone;
 * -ERANGE: `out` is too short. Does not follow a symbolic link at the end of `path`.
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
 * Lists the names of the extended attributes, each ended by a 0, and returns their length
 * together. `len` and symbolic links are as in `stetfs_getxattr`.
 *
 * # Safety
 * The volume is open, the path is a string, `out` has `len` bytes.
 */
int64_t stetfs_listxattr(const StetfsVolume *volume, const char *path, uint8_t *out, uintptr_t len);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STETFS_H */
