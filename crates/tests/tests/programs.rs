//! Programs that people use, on a mount. Afterwards e2fsck and an independent reader of the format
//! judge the volume.
//!
//! `STETFS_LAB_SECONDS=N` sets how long the timed programs run (default 3).
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stetfs_testkit::host::{needs, run, scratch};
use stetfs_testkit::image::{EXT3_1K, EXT4_1K, EXT4_4K, Variety, check};
use stetfs_testkit::mounted::Mounted;
use stetfs_testkit::skip_unless;

const SERVE: &str = env!("CARGO_BIN_EXE_serve");

/// Shortcut-JFS on an ordinary file, which survives the death of the server.
const SHORTCUT: &str = "scheme=shortcut,variant=adp-s,durability=process";

fn seconds() -> String {
    std::env::var("STETFS_LAB_SECONDS").unwrap_or_else(|_| "3".to_owned())
}

/// Schemes with memory beside the volume, also in an ordinary file ([`Bed::new`] chooses it).
const DJ: &str = "scheme=dj,durability=process";
const UBJ: &str = "scheme=ubj,durability=process";
const TINCA: &str = "scheme=tinca,durability=process";
const SPINDLE: &str = "scheme=spindle,durability=process";

/// Bytes of that memory: so few that a cache in it must evict.
const NVM: u64 = 16 << 20;

/// A volume, its mount point, and the mount.
struct Bed {
    scratch: tempfile::TempDir,
    options: String,
    mount: Option<Mounted>,
}

impl Bed {
    fn new(variety: Variety, mib: u64, options: &'static str) -> Self {
        let scratch = scratch().expect("a scratch directory");
        variety
            .make(&scratch.path().join("image"), mib, 0)
            .expect("a volume");
        fs::create_dir(scratch.path().join("mnt")).expect("a mount point");
        let mut options = options.to_owned();
        if [DJ, UBJ, TINCA, SPINDLE]
            .iter()
            .any(|scheme| options.starts_with(scheme))
        {
            let nvm = scratch.path().join("nvm");
            let file = fs::File::create(&nvm).expect("a file");
            file.set_len(NVM).expect("its size");
            options.push_str(&format!(",nvm={}", nvm.display()));
        }
        let mut bed = Self {
            scratch,
            options,
            mount: None,
        };
        bed.mount();
        bed
    }

    fn image(&self) -> PathBuf {
        self.scratch.path().join("image")
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    fn mount(&mut self) {
        self.mount = Some(
            Mounted::start(SERVE, &self.image(), &self.dir(), &self.options).expect("a mount"),
        );
    }

    fn unmount(&mut self) {
        self.mount
            .take()
            .expect("is mounted")
            .unmount()
            .expect("a clean unmount");
    }

    fn again(&mut self) {
        self.unmount();
        self.mount();
    }

    fn kill(&mut self) {
        self.mount
            .take()
            .expect("is mounted")
            .kill()
            .expect("the server is gone");
    }

    /// Unmounts, and has e2fsck judge the volume.
    fn finish(mut self) {
        self.unmount();
        check(&self.image()).expect("a clean volume");
    }
}

fn sh(script: &str) -> String {
    let out = run("sh", &["-euc", script]).unwrap_or_else(|error| panic!("{error:#}"));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Returns the source tree that this test belongs to.
fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .expect("the crates")
}

#[test]
fn git() {
    skip_unless!(needs(true, true, &["git", "mke2fs", "e2fsck"]));
    let mut bed = Bed::new(EXT4_4K, 256, "data=journal");
    let (origin, dir) = (bed.scratch.path().join("origin"), bed.dir());
    let git =
        "git -c user.name=t -c user.email=t@t -c init.defaultBranch=main -c commit.gpgsign=false";
    sh(&format!(
        "mkdir {o} && cd {o} && {git} init -q && cp -r {s}/*/src . 2>/dev/null || true; cd {o};
         for i in 1 2 3 4 5 6 7 8; do echo $i > file$i; cp -r {s}/format crate$i; {git} add -A; \
         {git} commit -qm \"commit $i\"; done",
        o = origin.display(),
        s = sources().display()
    ));
    sh(&format!(
        "cd {d} && {git} clone -q --no-hardlinks {o} clone && cd clone && {git} fsck --full \
            --strict &&
         {git} checkout -q -b topic HEAD~4 && echo x > new && {git} add new && {git} commit -qm \
         topic &&
         {git} merge -q --no-edit main && {git} gc -q --prune=now && {git} fsck --full",
        d = dir.display(),
        o = origin.display()
    ));
    bed.again();
    let status = sh(&format!(
        "cd {}/clone && {git} fsck --full && {git} status --porcelain",
        dir.display()
    ));
    assert_eq!(status, "");
    sh(&format!("rm -rf {}/clone", dir.display()));
    bed.finish();
}

#[test]
fn cargo_build() {
    skip_unless!(needs(true, true, &["cargo", "mke2fs", "e2fsck"]));
    let bed = Bed::new(EXT4_4K, 512, "data=ordered");
    let dir = bed.dir();
    fs::create_dir_all(dir.join("hello/src")).expect("mkdir");
    fs::write(
        dir.join("hello/Cargo.toml"),
        "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n",
    )
    .expect("write");
    fs::write(
        dir.join("hello/src/main.rs"),
        "fn main() { println!(\"hello from {}\", std::env::args().count()); }\n",
    )
    .expect("write");
    let out = Command::new(option_env!("CARGO").unwrap_or("cargo"))
        .args(["run", "--offline", "--quiet"])
        .current_dir(dir.join("hello"))
        .env("CARGO_TARGET_DIR", dir.join("hello/target"))
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&out.stdout), "hello from 1\n");
    bed.finish();
}

/// A database loses its file system in the middle of writing; everything that it had committed is
/// there. (`synchronous=extra`: with `full`, SQLite does not sync the directory after it has
/// removed its journal, and so does not confirm the removal.)
fn sqlite_survives(journal: &'static str, options: &'static str) {
    let mut bed = Bed::new(EXT4_4K, 64, options);
    let db = bed.dir().join("db");
    let mut sqlite = Command::new("sqlite3")
        .arg(&db)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sqlite3");
    let mut input = sqlite.stdin.take().expect("a pipe");
    let output = BufReader::new(sqlite.stdout.take().expect("a pipe"));
    let writer = std::thread::spawn(move || {
        let _ = writeln!(
            input,
            "pragma journal_mode={journal};\npragma synchronous=extra;\ncreate table t(n integer \
                primary key, x blob);"
        );
        for n in 0..100_000 {
            let sql = format!(
                "begin; insert into t values({n}, randomblob(700)); insert into t values({n} + \
                    1000000, randomblob(3000)); commit; select 'done', {n};"
            );
            if writeln!(input, "{sql}").is_err() {
                break;
            }
        }
    });
    let mut confirmed = None;
    for line in output.lines() {
        let Ok(line) = line else { break };
        let Some(n) = line
            .strip_prefix("done|")
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        confirmed = Some(n);
        if n == 120 {
            bed.kill();
            break;
        }
    }
    let _ = sqlite.kill();
    let _ = sqlite.wait();
    let _ = writer.join();
    assert_eq!(confirmed, Some(120), "{journal}: sqlite3 stopped early");
    bed.mount();
    let answer = sh(&format!(
        "sqlite3 {} 'pragma integrity_check; select count(*) from t where n <= 120; select \
            count(*) % 2 from t;'",
        db.display()
    ));
    assert_eq!(answer, "ok\n121\n0\n", "{journal}");
    bed.finish();
}

#[test]
fn sqlite_after_sigkill_of_the_server() {
    skip_unless!(needs(true, true, &["sqlite3", "mke2fs", "e2fsck"]));
    sqlite_survives("delete", "data=journal");
    sqlite_survives("wal", "data=journal");
    sqlite_survives("delete", "data=ordered");
    sqlite_survives("persist", "data=writeback");
    sqlite_survives("delete", SHORTCUT);
    sqlite_survives("wal", SHORTCUT);
    sqlite_survives("delete", DJ);
    sqlite_survives("wal", "scheme=dj,durability=process,data=ordered");
    sqlite_survives("delete", "scheme=ubj,durability=process,cow=range");
    sqlite_survives("wal", TINCA);
    sqlite_survives("delete", SPINDLE);
}

/// Compares two trees; links by what they say.
const SAME: &str = "diff -r --no-dereference";

/// Runs tar, copies, moves, and comparisons with the original; then an independent reader.
fn tree_survives(variety: Variety, options: &'static str) {
    let mut bed = Bed::new(variety, 256, options);
    let (dir, source) = (bed.dir(), sources());
    let tar = bed.scratch.path().join("tree.tar");
    sh(&format!(
        "cd {s} && tar cf {t} --exclude=target . && mkdir {d}/one && tar xf {t} -C {d}/one &&
         {SAME} {s} {d}/one &&
         cp -a {d}/one {d}/two && {SAME} {d}/one {d}/two && mv {d}/two {d}/one/moved && cp -a \
         {d}/one/moved {d}/three &&
         rm -rf {d}/one/moved && tar cf {t}.2 -C {d}/three . && ln -s three/format {d}/link && ln \
         {d}/three/core/Cargo.toml {d}/hard",
        s = source.display(),
        t = tar.display(),
        d = dir.display()
    ));
    bed.again();
    sh(&format!(
        "{SAME} {s} {d}/one && {SAME} {s} {d}/three && cmp {d}/hard {s}/core/Cargo.toml",
        s = source.display(),
        d = dir.display()
    ));
    bed.unmount();
    check(&bed.image()).expect("a clean volume");
    let image = fs::read(bed.image()).expect("the image");
    let reader = ext4_view::Ext4::load(Box::new(image)).expect("another reader reads it");
    let files = compare(&reader, &source, "/one") + compare(&reader, &source, "/three");
    assert!(files > 50, "only {files} files were compared");
    let link = reader.read_link("/link").expect("a link");
    assert_eq!(link.display().to_string(), "three/format");
}

/// Compares a directory on the volume, as the independent reader sees it, with the original;
/// returns the number of files.
fn compare(reader: &ext4_view::Ext4, original: &Path, path: &str) -> usize {
    let mut files = 0;
    for entry in fs::read_dir(original).expect("a directory") {
        let entry = entry.expect("an entry");
        let below = format!("{path}/{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            files += compare(reader, &entry.path(), &below);
            continue;
        }
        files += 1;
        if kind.is_symlink() {
            let seen = reader.read_link(below.as_str());
            let seen = seen.unwrap_or_else(|error| panic!("{below}: {error}"));
            let original = fs::read_link(entry.path()).expect("the original");
            assert_eq!(seen.as_ref(), original.as_os_str().as_encoded_bytes());
        } else {
            let seen = reader.read(below.as_str());
            let seen = seen.unwrap_or_else(|error| panic!("{below}: {error}"));
            let original = fs::read(entry.path()).expect("the original");
            assert!(seen == original, "{below}");
        }
    }
    files
}

#[test]
fn tar_diff_and_an_independent_reader() {
    skip_unless!(needs(true, true, &["tar", "diff", "mke2fs", "e2fsck"]));
    tree_survives(EXT4_4K, "data=journal");
    tree_survives(EXT4_1K, "data=ordered");
    tree_survives(EXT3_1K, "data=journal");
    tree_survives(EXT4_4K, SHORTCUT);
    tree_survives(EXT3_1K, SHORTCUT);
    tree_survives(EXT4_4K, DJ);
    tree_survives(EXT4_4K, UBJ);
    tree_survives(EXT3_1K, TINCA);
    tree_survives(EXT4_4K, SPINDLE);
}

#[test]
fn dbench() {
    skip_unless!(needs(true, true, &["dbench", "mke2fs", "e2fsck"]));
    let bed = Bed::new(EXT4_4K, 512, "data=journal");
    sh(&format!(
        "dbench -D {} -t {} 3",
        bed.dir().display(),
        seconds()
    ));
    bed.finish();
}

#[test]
fn postmark() {
    skip_unless!(needs(true, true, &["postmark", "mke2fs", "e2fsck"]));
    let bed = Bed::new(EXT4_1K, 256, "data=ordered");
    let text = sh(&format!(
        "printf 'set location {}\\nset number 400\\nset transactions 3000\\nset subdirectories \
            5\\nrun\\nquit\\n' | postmark",
        bed.dir().display()
    ));
    assert!(
        text.contains("transactions") && !text.contains("Error"),
        "{text}"
    );
    bed.finish();
}

#[test]
fn stress_ng_file_stressors() {
    skip_unless!(needs(true, true, &["stress-ng", "mke2fs", "e2fsck"]));
    let bed = Bed::new(EXT4_4K, 512, "data=ordered");
    let stressors = [
        "access",
        "chattr",
        "chdir",
        "chmod",
        "chown",
        "copy-file",
        "dentry",
        "dir",
        "dirdeep",
        "fallocate",
        "fiemap",
        "filename",
        "flock",
        "fpunch",
        "fsize",
        "getdent",
        "hdd",
        "iomix",
        "link",
        "locka",
        "metamix",
        "mknod",
        "readahead",
        "rename",
        "seek",
        "symlink",
        "sync-file",
        "touch",
        "unlink",
        "utime",
        "verity",
        "xattr",
    ];
    for stressor in stressors {
        let script = format!(
            "cd {d} && stress-ng --{stressor} 2 --hdd-bytes 16M --timeout 1s --verify --temp-path \
                {d} 2>&1",
            d = bed.dir().display()
        );
        let out = Command::new("sh")
            .args(["-c", &script])
            .output()
            .expect("sh");
        let text = String::from_utf8_lossy(&out.stdout);
        // 0 is success, 4 "not implemented here", 3 "no resources".
        let code = out.status.code().unwrap_or(-1);
        let unknown = text.contains("unrecognized option");
        assert!(
            unknown || [0, 3, 4].contains(&code),
            "{stressor}: {code}\n{text}"
        );
        if code != 0 {
            eprintln!("SKIPPED: this stress-ng cannot do {stressor} here ({code})");
        }
    }
    bed.finish();
}

#[test]
fn fio_with_verify() {
    skip_unless!(needs(true, true, &["fio", "mke2fs", "e2fsck"]));
    let mut bed = Bed::new(EXT4_4K, 512, "data=journal");
    let fio = |name: &str, dir: &Path, more: &str| {
        sh(&format!(
            "cd /tmp && fio --name={name} --directory={d} --size=24m --verify=crc32c \
                --verify_fatal=1 --randseed=3 --output-format=terse {more}",
            d = dir.display()
        ))
    };
    let dir = bed.dir();
    let buffered =
        "--rw=randrw --bsrange=512-64k --numjobs=2 --ioengine=psync --fsync=20 --do_verify=1";
    let direct = "--rw=randwrite --bs=4k --direct=1 --ioengine=libaio --iodepth=8 --do_verify=1";
    let mapped = "--rw=randwrite --bs=4k --ioengine=mmap --do_verify=1";
    fio("buffered", &dir, buffered);
    fio("direct", &dir, direct);
    fio("mapped", &dir, mapped);
    bed.again();
    fio("direct", &dir, &format!("{direct} --verify_only"));
    fio("mapped", &dir, &format!("{mapped} --verify_only"));
    bed.finish();
}
