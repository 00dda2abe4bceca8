//! The rows: a command line, what it does, and where ours differs from coreutils.
//!
//! `V/` is in the volume, `h/` on this machine; [`super::make_volume`] and [`super::make_host`]
//! make both anew for each row. `as_user` runs the rest of the line as an ordinary user, who may
//! write the image.

/// One command line.
pub(super) struct Row {
    /// The line for ours.
    pub(super) line: &'static str,
    /// The line for coreutils that leaves the same; empty if it is the same line.
    pub(super) theirs: &'static str,
    /// What it does, for the table.
    pub(super) does: &'static str,
    /// Why ours differs from coreutils.
    pub(super) why: &'static str,
}

const fn same(line: &'static str, does: &'static str) -> Row {
    Row {
        line,
        theirs: "",
        does,
        why: "",
    }
}

/// A row in which coreutils must be told `theirs` for the same result.
const fn other(
    line: &'static str,
    theirs: &'static str,
    does: &'static str,
    why: &'static str,
) -> Row {
    Row {
        line,
        theirs,
        does,
        why,
    }
}

const INTO_FILE: &str = "writes into the existing file, which keeps owner, mode, attributes, \
    ACL and other names";
const THROUGH: &str = "writes into the file that the link leads to";
const REFUSED: &str = "refused";
const NEW: &str = "a new file with the source's permissions without the umask";
const CONTENT: &str = "reads the input to its end, into a file";
const NODE: &str = "copies the pipe, device or link itself";
const REPLACED: &str = "replaces the existing one";
const INTO_DIR: &str = "copies into the directory";
const CONTENTS: &str = "copies its content into the target";
const NOTHING_BEHIND: &str = "while the image is not mounted, the name leads to no pipe and no \
    device";
const GROUP: &str = "the group is the directory's";
const DEFAULT_ACL: &str = "the directory's default ACL gives the permissions";
const BITS: &str = "coreutils leave a directory's set-ID and sticky bits where the source has none";
const KEPT: &str = "keeps mode, owner, times, attributes, ACLs, links between files";

/// Into the volume, one file or several.
pub(super) const CP_FILES: &[Row] = &[
    same("cp h/one V/f", INTO_FILE),
    same("cp h/one V/hard", INTO_FILE),
    same("cp h/one V/suid", INTO_FILE),
    same("cp h/one V/facl", INTO_FILE),
    same("cp h/one V/fx", INTO_FILE),
    same(
        "cp h/one V/cap",
        "as above, and removes the file's capabilities, as every write does",
    ),
    same("cp h/empty V/f", INTO_FILE),
    same("cp h/sparse V/f", INTO_FILE),
    same("cp h/one V/lf", THROUGH),
    same("cp h/one V/dangling", REFUSED),
    same("cp h/one V/di/imm", "refused: the file is immutable"),
    same("cp h/one V/new", NEW),
    same("umask 077; cp h/one V/new", NEW),
    same("cp h/suid V/new", "a new file without the set-ID bits"),
    same("cp h/sparse V/new", "holes stay holes"),
    same("cp h/facl V/new", "a new file without the ACL"),
    same("cp h/fx V/new", "a new file without the attributes"),
    same("cp h/one V/d", INTO_DIR),
    same("cp h/one V/d/", INTO_DIR),
    same("cp h/one V/d/.", INTO_DIR),
    same("cp h/one V/ld", INTO_DIR),
    same("cp h/one V/ld/", INTO_DIR),
    same("cp h/one V/dacl/", DEFAULT_ACL),
    same("umask 077; cp h/one V/dacl/", DEFAULT_ACL),
    same("cp h/one V/dg/", GROUP),
    same("cp h/one V/missing/", "refused: it is no directory"),
    same("cp h/one V/missing/.", REFUSED),
    same("cp h/one V/missing/x", REFUSED),
    same("cp h/one V/f/", REFUSED),
    same("cp h/one V/f/x", REFUSED),
    same("cp h/f V/dst", "refused: a directory of that name is there"),
    same("cp h/one h/two V/d", INTO_DIR),
    same("cp h/one h/two V/f", REFUSED),
    same(
        "cp h/one h/missing h/two V/d",
        "copies the sources that exist, and fails",
    ),
    same("cp h/one h/one V/d", "copies it once, and reports that"),
    same(
        "cp h/f h/d/f V/d",
        "refused: the second copy would destroy the first",
    ),
    same("cp h/d V/new", "refused: a directory needs -r"),
    same("cp h/d h/one V/d", "leaves the directory out, and fails"),
    same("cp h/lk V/new", "copies what the link leads to"),
    same("cp h/lkd V/new", "refused: a directory needs -r"),
    same("cp h/dangling V/new", REFUSED),
    same("cp h/one/ V/new", REFUSED),
    same("cp -n h/one V/f", "leaves existing files as they are"),
    same("cp -n h/one V/new", NEW),
    same("cp -n h/one V/lf", "leaves existing files as they are"),
    same("cp -n h/one V/dangling", REFUSED),
    same("cp -n h/f V/dst", "leaves existing files as they are"),
    same("cp -n h/one h/f V/d", "copies only new names"),
    other("cp h/one V/null", "false", "refused", NOTHING_BEHIND),
    other("cp h/one V/fifo", "false", "refused", NOTHING_BEHIND),
    other("cp -a h/one V/null", "false", "refused", NOTHING_BEHIND),
    other(
        "as_user cp h/one V/f",
        "cp h/one V/f",
        "writes into the file as root would: its owner stays",
        "everybody who may write the image may write all of it",
    ),
    other(
        "as_user cp h/one V/new",
        "cp h/one V/new; chown 65534:65534 V/new",
        "the new file is the user's",
        "everybody who may write the image may write all of it",
    ),
    other(
        "as_user cp h/one V/dg",
        "cp h/one V/dg; chown 65534 V/dg/one",
        GROUP,
        "everybody who may write the image may write all of it",
    ),
    other(
        "as_user cp -a h/d V/new",
        "cp -a h/d V/new",
        "the copies keep their owners",
        "everybody who may write the image may write all of it",
    ),
];

/// Sources that are no plain files.
pub(super) const CP_KINDS: &[Row] = &[
    same("cp /dev/null V/new", CONTENT),
    same("cp /dev/null V/f", "empties the existing file"),
    same("echo x | cp /dev/stdin V/new", CONTENT),
    same("cp /dev/stdin V/new < h/one", CONTENT),
    same("cp <(echo x) V/new", CONTENT),
    same("cp <(head -c 3000000 /dev/zero) V/new", CONTENT),
    same("(sleep 0.2; echo x) | cp /dev/stdin V/f", CONTENT),
    same("(echo x > h/fifo &); cp h/fifo V/new", CONTENT),
    same("cp -n <(echo x) V/f", "leaves existing files as they are"),
    same("cp /proc/version V/new", CONTENT),
    same("cp /sys/devices/system/cpu/online V/new", CONTENT),
    same("cp -r /proc/version V/new", CONTENT),
    same("cp -r h/fifo V/new", NODE),
    same("cp -r h/fifo V/d", NODE),
    same("umask 077; cp -r h/fifo V/new", NODE),
    same("cp -r h/fifo V/f", REPLACED),
    same("cp -r h/fifo V/null", REPLACED),
    same("cp -r h/fifo V/lf", REPLACED),
    same("cp -r h/fifo V/di/imm", "refused: the file is immutable"),
    same("cp -r /dev/null V/new", NODE),
    same("cp -r h/lk V/new", NODE),
    same("cp -r h/lkd V/new", NODE),
    same("cp -r h/dangling V/new", NODE),
    same("cp -r h/lk V/f", REPLACED),
    same("cp -r h/lk V/lf", REPLACED),
    same("cp -r h/lk V/d", NODE),
    same("cp -r h/lk V/dst", NODE),
    same(
        "cp -r h/lkd/ V/new",
        "a slash follows the link: copies the directory",
    ),
    same("cp -r h/one V/f", INTO_FILE),
    same("cp -r h/one V/lf", THROUGH),
    same("cp -r h/one V/hard", INTO_FILE),
    same("cp -r h/one V/dangling", REFUSED),
    same("cp -a h/fifo V/new", KEPT),
    same("cp -a /dev/null V/new", KEPT),
    same("cp -a h/lk V/new", KEPT),
    same("cp -a h/lk V/f", REPLACED),
    same("cp -a h/lk V/lf", REPLACED),
    same("cp -a h/dangling V/dangling", REPLACED),
    same("cp -an h/lk V/lf", "leaves existing files as they are"),
];

/// Trees.
pub(super) const CP_TREES: &[Row] = &[
    same("cp -r h/d V/", INTO_DIR),
    same("cp -R h/d V/new", "a new directory"),
    same("cp -r h/d V/new/", "a new directory"),
    same("cp -r h/d/ V/new", "a new directory"),
    same("umask 077; cp -r h/d V/new", "a new directory"),
    same(
        "cp -r h/rod V/new",
        "a new directory, filled before its mode is set",
    ),
    same("cp -r h/d V/missing/new", REFUSED),
    same("cp -r h/d V/d", INTO_DIR),
    same("cp -r h/d V/ld", INTO_DIR),
    same(
        "cp -r h/d V/",
        "copies into the existing directory of that name",
    ),
    same(
        "cp -rn h/d V/",
        "as above, and leaves existing files as they are",
    ),
    same("cp -r h/d/. V/d", CONTENTS),
    same("cp -r h/d/. V/new", "a new directory"),
    same("cp -r h/d/.. V/d", CONTENTS),
    same("cd h/d; cp -r . V/d", CONTENTS),
    same("cd h/d; cp -r .. V/d", CONTENTS),
    same("cd h/d; cp -r ./ V/new", "a new directory"),
    same("cp -r h/d V/f", "refused: a file is there"),
    same("cp -r h/d V/lf", "refused: a file is there"),
    same("cp -r h/d V/dangling", REFUSED),
    same(
        "cp -r h/d V/dst",
        "goes on with the rest where a directory or a file is in the way",
    ),
    same("cp -r h/d V/dacl", DEFAULT_ACL),
    same("cp -r h/d V/dg", GROUP),
    same("cp -r h/d h/d V/dst", "copies it once, and reports that"),
    same(
        "cp -r h/d h/missing h/one V/dst",
        "copies the sources that exist, and fails",
    ),
    same("cp -a h/d V/new", KEPT),
    other("cp -a h/d V/", "cp -a h/d V/; chmod -t V/d/sub", KEPT, BITS),
    same("cp -a h/d V/d", KEPT),
    other(
        "cp -a h/d/. V/d",
        "cp -a h/d/. V/d; chmod -t V/d/sub",
        "the target gets the attributes of the source, too",
        BITS,
    ),
    same("cp -a h/d/. V/new", KEPT),
    same("cp -a h/d V/dacl", KEPT),
    other(
        "cp -a h/d V/dg",
        "cp -a h/d V/dg; chmod g-s V/dg/d V/dg/d/sub",
        KEPT,
        BITS,
    ),
    same("cp -a h/rod V/new", KEPT),
    same("cp -a h/dacl V/new", KEPT),
    same("cp -a h/dacl/. V/d", KEPT),
    same("cp -a h/d/. V/dacl", KEPT),
    same(
        "cp -a h/one V/f",
        "writes into the existing file, and gives it the source's attributes",
    ),
    same("cp -a h/one V/lf", "into the file that the link leads to"),
    same(
        "cp -a h/one V/hard",
        "a new file in its place: the other names stay as they are",
    ),
    same("cp -a h/one V/facl", "into the file; its ACL goes"),
    same("cp -a h/facl V/f", KEPT),
    same("cp -a h/facl V/new", KEPT),
    same("cp -a h/fx V/fx", KEPT),
    same("cp -a h/cap V/new", KEPT),
    same("cp -a h/cap V/f", KEPT),
    same("cp -a h/suid V/f", KEPT),
    same("cp -a h/sparse V/new", KEPT),
    same(
        "cp -a h/one V/dacl",
        "the directory's default ACL gives nothing",
    ),
    same("cp -a h/hl1 h/hl2 V/d", "two names of one file"),
    same(
        "cp -a h/hl1 h/hl2 V/dst",
        "two names of one file, in the place of others",
    ),
    same("cp -r h/hl1 h/hl2 V/d", "two files"),
    other(
        "cp -an h/d V/",
        "cp -an h/d V/; chmod -t V/d/sub",
        "leaves existing files as they are",
        BITS,
    ),
];

/// Out of the volume.
pub(super) const CP_OUT: &[Row] = &[
    same("cp V/f h/new", NEW),
    same("cp V/f h/one", INTO_FILE),
    same("cp V/f h/hl1", INTO_FILE),
    same("cp V/f h/lk", THROUGH),
    same("cp V/f h/dangling", REFUSED),
    same("cp V/f h/d", INTO_DIR),
    same("cp V/f h/missing/", REFUSED),
    same("cp V/lf h/new", "copies what the link leads to"),
    same("cp V/suid h/new", "a new file without the set-ID bits"),
    same("cp V/sparse h/new", "holes stay holes"),
    same("cp V/d h/new", "refused: a directory needs -r"),
    same("cp V/missing h/new", REFUSED),
    same("cp V/f /dev/stdout", "writes it to the pipe"),
    same("cp V/f /dev/null", "writes it to the device"),
    same("cp V/sparse /dev/stdout | md5sum", "holes are zeros there"),
    same("cp V/f V/g /dev/stdout", REFUSED),
    same(
        "(tr a a < h/fifo &); cp V/f h/fifo; sleep 0.1",
        "writes it to the pipe",
    ),
    same("cp -r V/d h/new", "a new directory"),
    same("cp -r V/d/. h/d", CONTENTS),
    same("cp -r V/ld h/new", NODE),
    same(
        "cp -r V/ld/ h/new",
        "a slash follows the link: copies the directory",
    ),
    same("cp -r V/fifo V/null h/d", NODE),
    same("cp -a V/d h/new", KEPT),
    same("cp -a V/hard V/hard2 h/d", "two names of one file"),
    same("cp -a V/facl V/fx V/cap V/suid h/d", KEPT),
    same("cp -a V/f h/lk", "into the file that the link leads to"),
    same(
        "cp -a V/f h/hl1",
        "a new file in its place: the other names stay as they are",
    ),
    same("cp -a V/dacl h/new", KEPT),
    same("cp -r V/d h/f", "refused: a file is there"),
    other("cp V/fifo h/new", "false", "refused", NOTHING_BEHIND),
    other("cp V/null h/new", "false", "refused", NOTHING_BEHIND),
    other(
        "cp -r V/d h/links",
        "cp -r V/d/a V/d/sub V/d/.dot h/links/d; false",
        "copies the rest, and leaves out the file whose place a link has taken",
        "content of an image goes only where the command line says: the link may be from an \
     earlier copy of the image",
    ),
];

/// Inside the volume.
pub(super) const CP_INSIDE: &[Row] = &[
    same("cp V/f V/g", INTO_FILE),
    same("cp V/f V/new", NEW),
    same("cp V/f V/f", "refused: they are the same file"),
    same("cp V/f V/lf", "refused: they are the same file"),
    same("cp V/lf V/f", "refused: they are the same file"),
    same("cp V/hard V/hard2", "refused: they are the same file"),
    same("cp -r V/d V/new", "a new directory"),
    same("cp -a V/d V/dst", KEPT),
    same("cp -a V/hard V/hard2 V/d", "two names of one file"),
    same("cp -r V/d/. V/d", REFUSED),
    other(
        "cp -r V/d V/d/sub",
        "false",
        "refused; nothing is made",
        "coreutils notice it when they reach the copy, and leave a part of it",
    ),
    other(
        "cp -r V/d V/d/new",
        "false",
        "refused; nothing is made",
        "coreutils notice it when they reach the copy, and leave a part of it",
    ),
];

/// rm.
pub(super) const RM: &[Row] = &[
    same("rm V/f", "removes it"),
    same(
        "rm V/f V/missing V/g",
        "removes those that exist, and fails",
    ),
    same("rm -f V/missing", "does nothing, without an error"),
    same("rm -f V/missing/x V/f/x", "does nothing, without an error"),
    same("rm V/missing/x", REFUSED),
    same("rm V/d", "refused: a directory needs -r"),
    same("rm -f V/d", "refused: a directory needs -r"),
    same("rm -r V/d", "removes the tree"),
    same("rm -R V/d/", "removes the tree"),
    same("rm -r V/f V/fifo V/null", "removes them"),
    same("rm V/lf V/dangling", "removes the links"),
    same("rm -r V/ld", "removes the link"),
    same("rm V/ld/", REFUSED),
    other(
        "rm -r V/ld/",
        "false",
        "refused; nothing is removed",
        "coreutils remove the directory's content, and then fail to remove the link",
    ),
    other(
        "rm -rf V/ld/",
        "false",
        "refused; nothing is removed",
        "coreutils remove the directory's content, and then leave the link",
    ),
    same("rm V/f/", REFUSED),
    same("rm -f V/f/", "does nothing, without an error"),
    same("rm -r V/d/.", REFUSED),
    same("rm -r V/d/sub/..", REFUSED),
    same("rm -rf V/d/./ V/f", "refused; removes the others"),
    same("rm V/hard", "its other names stay"),
    same("rm V/di/imm", "refused: the file is immutable"),
    same("rm -f V/di/imm", "refused: the file is immutable"),
    same("rm -r V/di", "removes what can be removed, and fails"),
    same("rm -rf V/di", "removes what can be removed, and fails"),
];

/// mv.
pub(super) const MV: &[Row] = &[
    same("mv V/f V/new", "renames it"),
    same("mv V/f V/g", "replaces the existing file"),
    same("mv V/f V/d", INTO_DIR),
    same("mv V/f V/ld", INTO_DIR),
    same("mv V/f V/d/", INTO_DIR),
    same("mv V/f V/lf", "replaces the link"),
    same("mv V/f V/dangling", "replaces the link"),
    same("mv V/f V/fifo", REPLACED),
    same("mv V/lf V/new", "renames the link"),
    same("mv V/ld V/dst", "moves the link"),
    same("mv V/f V/new/", REFUSED),
    same("mv V/f/ V/new", REFUSED),
    same("mv V/f V/g/", REFUSED),
    same("mv V/f V/missing/x", REFUSED),
    same("mv V/missing V/new", REFUSED),
    same("mv V/d V/new", "renames it"),
    same("mv V/d V/new/", "renames it"),
    same("mv V/d/ V/new", "renames it"),
    same("mv V/d V/f", "refused: a file is there"),
    same("mv V/d V/lf", "refused: a file is there"),
    same("mv V/f V/dst", "refused: a directory of that name is there"),
    same(
        "mv V/d V/dst",
        "refused: the directory of that name is not empty",
    ),
    same(
        "mkdir V/dst/dg; mv V/dg V/dst",
        "replaces the empty directory",
    ),
    same("mv V/d V/d/sub", "refused: it would lie below itself"),
    same("mv V/d/. V/new", REFUSED),
    same("mv V/d/sub/.. V/new", REFUSED),
    same("mv V/f V/f", "refused: they are the same file"),
    same("mv V/d V/d", "refused: they are the same file"),
    same("mv V/hard V/hard2", "refused: they are the same file"),
    same("mv V/f V/g V/d", INTO_DIR),
    same("mv V/f V/g V/hard", REFUSED),
    same(
        "mv V/f V/missing V/g V/dg",
        "moves those that exist, and fails",
    ),
    same(
        "mv V/f V/d/f V/dg",
        "refused: the second file would destroy the first",
    ),
    same("mv V/di/imm V/new", "refused: the file is immutable"),
    same("mv V/f V/di/imm", "refused: the file is immutable"),
    same("mv -n V/f V/g", "leaves existing files as they are"),
    same("mv -n V/f V/new", "renames it"),
    other(
        "mv V/f h/new",
        "false",
        "refused",
        "coreutils rename it; out of an image, a file is copied, and removed when that is done",
    ),
];

/// ln.
pub(super) const LN: &[Row] = &[
    same("ln V/f V/new", "a further name"),
    same("ln V/f V/d", REFUSED),
    same("ln V/g V/d", "a further name, in the directory"),
    same("ln V/g V/ld", "a further name, in the directory"),
    same("ln V/f V/g V/dg", "further names, in the directory"),
    same("ln V/f V/g", "refused: the name is taken"),
    same("ln -f V/f V/g", "replaces the existing one"),
    same("ln -f V/f V/f", "refused: they are the same file"),
    same("ln -f V/f V/lf", "replaces the link"),
    same(
        "ln -f V/f V/dst",
        "refused: a directory of that name is there",
    ),
    same("ln V/lf V/new", "a further name of the link"),
    same("ln V/d V/new", "refused: a directory has one name"),
    same("ln V/missing V/new", REFUSED),
    same("ln V/f V/new/", REFUSED),
    same("ln V/fifo V/new", "a further name"),
    same("ln -s any/words V/new", "a link that holds the words"),
    same("ln -s ../f V/d", "refused: a file of that name is there"),
    same("ln -s ../g V/d", "a link of that name, in the directory"),
    same("ln -s x V/f", "refused: the name is taken"),
    same("ln -sf x V/f", REPLACED),
    same("ln -sf x V/lf", REPLACED),
    same("ln -s x V/dangling", "refused: the name is taken"),
    same(
        "ln -s a/x b/y V/d",
        "links of these names, in the directory",
    ),
    same("ln -s x V/new/", REFUSED),
];

/// mkdir.
pub(super) const MKDIR: &[Row] = &[
    same("mkdir V/new", "makes it, with 777 without the umask"),
    same(
        "umask 077; mkdir V/new",
        "makes it, with 777 without the umask",
    ),
    same("mkdir V/new/", "makes it"),
    same(
        "mkdir V/new V/d V/new/x",
        "makes those that it can, and fails",
    ),
    same("mkdir V/d", REFUSED),
    same("mkdir V/f", REFUSED),
    same("mkdir V/dangling", REFUSED),
    same("mkdir V/missing/x", REFUSED),
    same("mkdir V/ld/new", "makes it where the link leads"),
    same(
        "mkdir V/dg/new",
        "the group is the directory's, set-group-ID too",
    ),
    same(
        "mkdir V/dacl/new",
        "the new directory inherits the default ACL",
    ),
    same("mkdir -m 1711 V/new", "exactly these permissions"),
    same("umask 077; mkdir -m 755 V/new", "exactly these permissions"),
    same(
        "mkdir -m 755 V/dg/new",
        "these permissions; set-group-ID stays",
    ),
    same("mkdir -m 750 V/dacl/new", "these permissions"),
    same("mkdir -p V/a/b/c", "makes the missing directories"),
    same("mkdir -p V/d", "does nothing, without an error"),
    same("mkdir -p V/ld", "does nothing, without an error"),
    same("mkdir -p V/d/new/x/", "makes the missing directories"),
    same(
        "mkdir -p -m 700 V/a/b/c",
        "the permissions are the last one's",
    ),
    same("mkdir -p -m 700 V/d", "does nothing, without an error"),
    same(
        "umask 333; mkdir -p V/a/b/c",
        "the owner may write and search the parents",
    ),
    same("mkdir -p V/a/../b", "makes both"),
    same("mkdir -p V/f", REFUSED),
    same("mkdir -p V/f/x", REFUSED),
    same("mkdir -p V/dangling/x", REFUSED),
    other(
        "as_user mkdir V/new",
        "mkdir V/new; chown 65534:65534 V/new",
        "the directory is the user's",
        "everybody who may write the image may write all of it",
    ),
];

/// ls and cat; what they print is compared.
pub(super) const LS_CAT: &[Row] = &[
    same("ls V/d", "the names, sorted by their bytes"),
    same("ls V/d/", "the names"),
    same("ls V/f V/g", "the names as they were given"),
    same("ls V/d V/dst", "each directory with its name"),
    same("ls V/d V/f", "files first"),
    same("ls V/lf", "the link"),
    same(
        "ls V/ld",
        "the content of the directory that the link leads to",
    ),
    same(
        "ls V/ld/",
        "the content of the directory that the link leads to",
    ),
    same("ls V/dangling", "the link"),
    same("ls -l V/ld | cut -c1-10", "the link"),
    same("ls V/missing V/f", "those that exist, and fails"),
    same("ls V/f/", REFUSED),
    same("ls -d V/d V/ld V/f", "the names"),
    same("ls -R V/d", "each directory with its name"),
    same("ls -R V/ld", "each directory with its name"),
    same(
        "ls -i V/f V/lf V/g | sed 's/^ *//; s/  */ /g'",
        "inode numbers first",
    ),
    same(
        "ls -l V/f V/suid V/null V/fifo | cut -c1-10",
        "type and permissions first",
    ),
    other(
        "ls -a V/d",
        "ls -A V/d",
        "names that begin with a dot, without . and ..",
        "neither would add anything to the list",
    ),
    same("cat V/f V/g", "what is in them"),
    same("cat V/lf", "the content of the file that the link leads to"),
    same("cat V/sparse | md5sum", "holes are zeros"),
    same("cat V/missing V/f", "those that exist, and fails"),
    same("cat V/d V/f", "everything readable, and fails"),
    same("cat V/f/", REFUSED),
    other("cat V/fifo", "false", "refused", NOTHING_BEHIND),
    other("cat V/null", "false", "refused", NOTHING_BEHIND),
];

/// All of them, with a title each.
pub(super) const ALL: &[(&str, &[Row])] = &[
    ("cp: files into an image", CP_FILES),
    ("cp: special files", CP_KINDS),
    ("cp: trees", CP_TREES),
    ("cp: out of an image", CP_OUT),
    ("cp: inside an image", CP_INSIDE),
    ("mv", MV),
    ("ln", LN),
    ("rm", RM),
    ("mkdir", MKDIR),
    ("ls and cat", LS_CAT),
];
