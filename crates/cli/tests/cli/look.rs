//! find and du beside the real programs on a kernel mount of the same volume; diff against that
//! mount, and against a copy in which each kind of thing was changed.

use std::fs;
use std::path::Path;

use crate::run::{Lab, Ran, has, json, stetfs, tool};

const TREE: &str = r#"
mkdir -p a/b/c 'sp ace' empty deep/1/2/3/4
printf 'hello\n' > a/f; head -c 5000 /dev/zero > a/zeros; : > a/none; printf x > 'sp ace/[x]'
truncate -s 5M a/sparse; printf end >> a/sparse; head -c 1300000 /dev/urandom > a/b/big.JPG
ln a/f a/b/hard; ln -s f a/link; ln -s "$(head -c 200 /dev/zero | tr '\0' t)" a/long
mkfifo a/pipe; mknod a/null c 1 3; mknod a/disk b 7 200
chmod 4755 a/f; chmod 640 a/zeros; chmod 1777 empty; chown 1000:1001 a/zeros deep/1
touch -d '3 days ago' a/none; touch -d '90 minutes ago' a/zeros; touch -d '2001-02-03' a/b/big.JPG
touch -a -d '10 days ago' a/none
setfattr -n user.colour -v blue a/f
setfattr -n user.large -v "$(head -c 600 /dev/zero | tr '\0' v)" a/none
mkdir -p etc; printf 'root:x:0:0:::\nme:x:1000:1001:::\n' > etc/passwd
printf 'us:x:1001:\n' > etc/group
for n in $(seq 300); do : > deep/a-name-that-makes-the-directory-large-$n; done
"#;

/// An image with a tree, and where the kernel has it mounted.
struct Beside {
    lab: Lab,
    image: String,
    dir: String,
}

impl Beside {
    fn new() -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root || !["losetup", "setfattr", "find", "du"].into_iter().all(has) {
            eprintln!("SKIPPED: only root can mount the volume to compare with");
            return None;
        }
        let lab = Lab::in_memory();
        let image = lab.volume(&["--block-size", "1K"]);
        let dir = lab.str("mnt");
        fs::create_dir(&dir).unwrap();
        let made = Self { lab, image, dir };
        made.mount("loop");
        made.shell(TREE);
        crate::run::unmount(&made.dir);
        Some(made)
    }

    fn mount(&self, how: &str) {
        tool("mount", &["-o", how, &self.image, &self.dir]).ok();
    }

    fn shell(&self, script: &str) {
        tool("bash", &["-ec", &format!("cd '{}'; {script}", self.dir)]).ok();
    }

    /// Returns the sorted lines of both outputs, with the same name for the volume.
    fn both(&self, ours: Ran, theirs: Ran) -> [Vec<String>; 2] {
        let lines = |ran: Ran, name: &str| {
            let out = ran.ok();
            let out = out.replace(name, "V").replace('\0', "\n");
            let mut lines: Vec<String> = out.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        [
            lines(ours, &format!("{}:", self.image)),
            lines(theirs, &self.dir),
        ]
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        tool("umount", &[&self.dir]);
    }
}

/// Expressions, as a shell has them.
const EXPRESSIONS: &[&str] = &[
    "",
    "-name '*.jpg' -o -iname '*.jpg'",
    "-name 'a*' -type d",
    "-type f,l -links +1",
    "-mindepth 1 -name '[[]x]' -o -name '?'",
    "-path '*/b/*'",
    "-ipath '*/B/BIG.*'",
    "-type p -o -type c,b -o -type s",
    "-size +9",
    "-size -2k -type f",
    "-size 5000c",
    "-size 6M",
    "-size 0",
    "-empty",
    "-perm 640",
    "-perm -4000",
    "-perm /7000",
    "-perm -0",
    "-perm /0 -maxdepth 1",
    "-uid 1000",
    "-gid +0",
    "-user 1000 -group 1001",
    "-links 1 -type f -name none",
    "-mtime +1 -type f",
    "-mtime 3",
    "-mtime -1 -maxdepth 1",
    "-mmin +80 -mmin -100",
    "-mmin 91",
    "-atime +5 -type f",
    "-newer $REF -type f -maxdepth 2",
    "-maxdepth 1",
    "-mindepth 2 -maxdepth 2",
    "-depth -maxdepth 2",
    "-name deep -prune -o -print",
    "-name deep -prune -o -type f -print0",
    "! -type f ! -type d",
    "-not ( -name 'a*' -or -false ) -a -true -maxdepth 1",
];

#[test]
fn find_finds_what_that_of_the_machine_finds() {
    let Some(beside) = Beside::new() else {
        return;
    };
    let run = |command: &str, top: &str, reference: &str, expression: &str| {
        let expression = expression.replace("$REF", reference);
        let expression = expression.replace('(', "\\(").replace(')', "\\)");
        tool("bash", &["-c", &format!("{command} '{top}' {expression}")])
    };
    let command = format!("{} find", crate::run::STETFS);
    let ours: Vec<Ran> = EXPRESSIONS
        .iter()
        .map(|expression| {
            let reference = format!("{}:/a/zeros", beside.image);
            run(
                &command,
                &format!("{}:/", beside.image),
                &reference,
                expression,
            )
        })
        .collect();
    beside.mount("loop,ro");
    for (expression, ours) in EXPRESSIONS.iter().zip(ours) {
        let top = format!("{}/", beside.dir);
        let theirs = run("find", &top, &format!("{}a/zeros", top), expression);
        let is_ordered = expression.contains("-depth ");
        let [ours, theirs] = beside.both(ours, theirs);
        assert_eq!(ours, theirs, "find {expression}");
        assert!(
            !ours.is_empty() || *expression == "-size 6M",
            "find {expression}"
        );
        assert!(!is_ordered || ours.len() > 5);
    }
}

#[test]
fn find_knows_the_owners_of_the_image_and_lists() {
    let Some(beside) = Beside::new() else {
        return;
    };
    let image = &beside.image;
    let by_name = stetfs(&["find", image, "-user", "me", "-group", "us"]).ok();
    assert_eq!(by_name, format!("{image}:/a/zeros\n{image}:/deep/1\n"));
    stetfs(&["find", image, "-user", "nobody"]).fails(1, &["there is no user \"nobody\""]);
    let with = stetfs(&["find", image, "-xattr", "user.colour"]).ok();
    assert_eq!(with, format!("{image}:/a/b/hard\n{image}:/a/f\n"));
    let told = json(&stetfs(&["find", "--json", image, "-name", "f"]).ok());
    assert_eq!(told[0]["mode"], "4755");
    let ours = stetfs(&["find", image, "-path", "*:/a/*", "-ls"]);
    beside.mount("loop,ro");
    let theirs = tool(
        "find",
        &[&format!("{}/a", beside.dir), "-mindepth", "1", "-ls"],
    );
    // Inode, space, mode, links; the owners of the machine have names.
    let columns = |lines: Vec<String>| -> Vec<String> {
        let first = |line: &String| {
            let words: Vec<&str> = line.split_whitespace().collect();
            format!("{:?} {}", &words[..4], words.last().unwrap())
        };
        let mut all: Vec<String> = lines.iter().map(first).collect();
        all.sort();
        all
    };
    let [ours, theirs] = beside.both(ours, theirs);
    assert_eq!(columns(ours), columns(theirs));
}

#[test]
fn du_counts_as_that_of_the_machine_does() {
    let Some(beside) = Beside::new() else {
        return;
    };
    // In one directory, it does not matter which name of a file comes first.
    beside.mount("loop");
    beside.shell("mv a/b/hard a/hard");
    crate::run::unmount(&beside.dir);
    const OPTIONS: &[&str] = &[
        "",
        "-s",
        "-a",
        "-d1",
        "-d 0",
        "-h",
        "-ah",
        "-sc",
        "--inodes",
        "--inodes -s",
        "-a --inodes",
        "-hs",
        "-c -d 1",
    ];
    let run = |command: &str, options: &str, tops: [&str; 2]| {
        let [a, b] = tops;
        tool("bash", &["-c", &format!("{command} {options} '{a}' '{b}'")])
    };
    let (first, second) = (
        format!("{}:/a", beside.image),
        format!("{}:/", beside.image),
    );
    let command = format!("{} du", crate::run::STETFS);
    let ours = OPTIONS
        .iter()
        .map(|options| run(&command, options, [&first, &second]));
    let ours: Vec<Ran> = ours.collect();
    let lengths = stetfs(&["du", "-ab", &second]).ok();
    beside.mount("loop,ro");
    let (first, second) = (format!("{}/a", beside.dir), format!("{}/", beside.dir));
    for (options, ours) in OPTIONS.iter().zip(ours) {
        let theirs = run("du", options, [&first, &second]);
        let [mut ours, mut theirs] = beside.both(ours, theirs);
        // Which name of a file counts depends on the order of the directory.
        for lines in [&mut ours, &mut theirs] {
            lines.retain(|line| !line.ends_with("/a/f") && !line.ends_with("/hard"));
        }
        assert_eq!(ours, theirs, "du {options}");
    }
    // Versions of du differ in the lengths of directories.
    let theirs = tool(
        "find",
        &[
            &beside.dir,
            "-type",
            "f",
            "-links",
            "1",
            "-printf",
            "%s\t%p\n",
        ],
    );
    for line in theirs.ok().lines() {
        let line = line.replace(&beside.dir, &format!("{}:", beside.image));
        assert!(
            lengths.lines().any(|ours| ours == line),
            "{line} in {lengths}"
        );
    }
}

/// The kernel shows the same tree as we do, in every attribute; a copy in which each was changed is
/// told apart, each by its own line.
#[test]
fn diff_tells_what_differs_and_nothing_else() {
    let Some(beside) = Beside::new() else {
        return;
    };
    let other = beside.lab.str("other.img");
    fs::copy(&beside.image, &other).unwrap();
    let (image, dir) = (beside.image.clone(), beside.dir.clone());
    assert_eq!(stetfs(&["diff", &image, &other]).ok(), "");
    let copy = beside.lab.str("copy.img");
    fs::copy(&image, &copy).unwrap();
    beside.mount("loop,ro");
    // The other program has the volume mounted: a copy of the image is compared with it.
    let ran = stetfs(&["diff", &copy, &dir]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{ran:#?}");
    crate::run::unmount(&dir);
    tool("mount", &["-o", "loop", &other, &dir]).ok();
    beside.shell(
        "rm a/none; : > new; chmod 600 a/zeros; chown 5:6 empty; touch -d 2003-04-05 deep/1;
         printf HELLO > a/f; touch -r a/link a/f; setfattr -x user.colour a/f
         ln -sfn g a/link; rm a/null; mknod a/null c 1 5; rm a/pipe; mkdir a/pipe
         printf y | dd of=a/sparse bs=1 seek=1000000 conv=notrunc status=none
         rm a/b/hard; cp -a a/f a/b/hard",
    );
    crate::run::unmount(&dir);
    let ran = stetfs(&["diff", "--ignore", "times", &image, &other]);
    assert_eq!(ran.code, 1, "{ran:#?}");
    let mut lines: Vec<String> = ran.out.lines().map(str::to_owned).collect();
    lines.sort();
    let content = |path: &str, sizes: [u64; 2], at: u64| {
        let [a, b] = sizes.map(|size| format!("{size} bytes, different from byte {at} on"));
        format!("{path}: content: {a} | {b}")
    };
    let mut expected = vec![
        format!("only in {image}: a/none (file)"),
        format!("only in {other}: new (file)"),
        content("a/b/hard", [6, 5], 0),
        "a/b/hard: xattr user.colour: blue | none".to_owned(),
        "a/f: links: a/b/hard | none".to_owned(),
        "a/f: xattr user.colour: blue | none".to_owned(),
        content("a/f", [6, 5], 0),
        "a/link: target: f | g".to_owned(),
        "a/null: device: 1:3 | 1:5".to_owned(),
        "a/pipe: type: fifo | directory".to_owned(),
        content("a/sparse", [5_242_883; 2], 1_000_000),
        "a/zeros: mode: 0640 | 0600".to_owned(),
        "empty: owner: 0:0 | 5:6".to_owned(),
    ];
    expected.sort();
    assert_eq!(lines, expected);
    let told = json(&stetfs(&["diff", "--json", &image, &other]).out);
    let times = told
        .as_array()
        .unwrap()
        .iter()
        .filter(|d| d["what"] == "mtime");
    assert!(times.clone().any(|d| d["path"] == "deep/1"), "{told}");
    let below = |image: &str| format!("{image}:/deep/1/2");
    assert_eq!(stetfs(&["diff", &below(&image), &below(&other)]).code, 0);
    stetfs(&["diff", &image, &beside.lab.str("none")]).fails(2, &["none"]);
    stetfs(&["diff", &image, &format!("{other}:/none")]).fails(2, &["/none"]);
    assert!(Path::new(&image).exists());
}
