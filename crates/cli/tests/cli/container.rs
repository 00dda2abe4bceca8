//! mkfs --from a container image, judged by what umoci and tar unpack.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::from::{Full, archive_of, assert_same, stetfs_then};
use crate::run::{Lab, STETFS, assert_clean, debugfs, has, stetfs, tool};

/// Makes the image `base` with the tag 1, lays two layers over it (tag 2), and unpacks that.
const BUILD: &str = r#"
umoci init --layout layout
umoci new --image layout:0
umoci unpack --image layout:0 bundle
cd bundle/rootfs
mkdir -p etc/d usr/lib var/gone/deep
ln -s usr/lib lib
echo one >etc/conf; echo two >etc/d/x; echo y >etc/d/y; ln etc/conf etc/hard
echo so >usr/lib/so; echo g >var/gone/deep/f; echo k >var/keep
chown 12:34 etc/d/x; chmod 4755 etc/d/y; mkfifo pipe; touch -d 2001-02-03T04:05:06 etc/d/y
head -c 3000000 /dev/urandom >big
cd ../..
umoci repack --refresh-bundle --image layout:1 bundle
cd bundle/rootfs
rm -r var/gone etc/hard etc/d; echo three >etc/conf; mkdir etc/d; echo new >etc/d/new
rm big; mkdir big; echo in >big/in; ln usr/lib/so usr/lib/so2
cd ../..
umoci repack --refresh-bundle --image layout:between bundle
cd bundle/rootfs
rm -r big var/keep; echo file >big; mkdir var/keep; echo again >etc/hard
cd ../..
umoci repack --refresh-bundle --image layout:2 bundle
umoci unpack --image layout:2 theirs
"#;

#[test]
fn a_container_image_is_what_umoci_unpacks() {
    if !rustix::process::geteuid().is_root() || !has("umoci") {
        eprintln!("SKIPPED: only root unpacks owners and devices by umoci");
        return;
    }
    let lab = Lab::new();
    let script = format!("set -e; cd \"$1\"; ({BUILD}) >/dev/null");
    tool("sh", &["-c", &script, "sh", &lab.str("")]).ok();
    let (a, b, layout) = (lab.str("a.img"), lab.str("b.img"), lab.str("layout"));
    stetfs_then(&["mkfs", &a, "--from", &lab.str("theirs/rootfs")]).ok();
    stetfs_then(&["mkfs", &b, "--from", &layout, "--tag", "2"]).ok();
    assert_clean(&b);
    assert_same(&a, &b);
    let why = ["holds several images", "1, 2, between", "--tag NAME"];
    stetfs(&["mkfs", &b, "--force", "--from", &layout]).fails(1, &why);

    // The same image, in an archive that comes compressed through a pipe.
    for (packer, unpacked) in [("gzip", "--gzip"), ("xz", "--xz"), ("zstd", "--zstd")] {
        if !has(packer) {
            continue;
        }
        let archive = lab.str("layout.tar.packed");
        tool("tar", &[unpacked, "-C", &layout, "-cf", &archive, "."]).ok();
        let mut then = Command::new(STETFS);
        then.args(["mkfs", &b, "--force", "--from", "-", "--tag", "2"])
            .env("SOURCE_DATE_EPOCH", "1600000000")
            .stdin(Stdio::piped());
        let mut child = then.stdout(Stdio::null()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        std::io::copy(&mut File::open(&archive).unwrap(), &mut pipe).unwrap();
        drop(pipe);
        assert!(child.wait().unwrap().success(), "{packer}");
        assert_same(&a, &b);
        // From a file, one whose end is missing.
        let bytes = fs::read(&archive).unwrap();
        fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
        let from = ["mkfs", &b, "--force", "--from", &archive, "--tag", "2"];
        stetfs(&from).fails(
            1,
            &["layout.tar.packed", &format!("compressed by {packer}")],
        );
    }
}

/// An image layout that is made by hand.
struct Layout {
    lab: Lab,
    dir: PathBuf,
}

impl Layout {
    fn new() -> Self {
        let lab = Lab::new();
        let dir = lab.path("layout");
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { lab, dir }
    }

    /// Keeps a blob; returns its descriptor, with these further fields.
    fn blob(&self, kind: &str, bytes: &[u8], more: &str) -> String {
        let file = self.dir.join("new");
        fs::write(&file, bytes).unwrap();
        let sum = tool("sha256sum", &[file.to_str().unwrap()]).ok();
        let sum = sum.split(' ').next().unwrap();
        fs::rename(&file, self.dir.join("blobs/sha256").join(sum)).unwrap();
        let (kind, len) = (format!("application/vnd.oci.image.{kind}"), bytes.len());
        format!(r#"{{"mediaType":"{kind}","digest":"sha256:{sum}","size":{len}{more}}}"#)
    }

    fn layer(&self, members: &[Full]) -> String {
        let tar = self.lab.path("layer.tar");
        archive_of(&tar, members);
        self.blob("layer.v1.tar", &fs::read(tar).unwrap(), "")
    }

    fn manifest(&self, layers: &[String], more: &str) -> String {
        let json = format!(r#"{{"layers":[{}]}}"#, layers.join(","));
        self.blob("manifest.v1+json", json.as_bytes(), more)
    }

    fn index(&self, manifests: &[String]) {
        let json = format!(r#"{{"manifests":[{}]}}"#, manifests.join(","));
        fs::write(self.dir.join("index.json"), json).unwrap();
    }

    fn image(&self) -> String {
        self.lab.str("disk.img")
    }

    fn make(&self, more: &[&str]) -> crate::run::Ran {
        let (image, from) = (self.image(), self.dir.to_str().unwrap());
        let args = ["mkfs", &image, "--force", "--from", from];
        stetfs(&[&args, more].concat())
    }

    /// Returns the names in the image, sorted.
    fn names(&self) -> Vec<String> {
        assert_clean(self.image());
        let found = stetfs(&["find", &format!("{}:/", self.image())]).ok();
        let names = found.lines().filter_map(|line| line.split_once(":/"));
        let names = names.map(|(_, name)| name.trim_start_matches('/').to_owned());
        let mut names: Vec<_> = names
            .filter(|n| !n.is_empty() && n != "lost+found")
            .collect();
        names.sort();
        names
    }
}

const fn file(name: &str) -> Full<'_> {
    ((name, b'0', ""), b"")
}

#[test]
fn layers_hide_what_is_below_them() {
    let layout = Layout::new();
    let below = [
        file("a/one"),
        file("a/two"),
        ((("a/three"), b'1', "a/two"), &b""[..]),
        file("b/one"),
        file("b/c/deep"),
        (("lib", b'2', "usr/lib"), b""),
        (("up", b'2', "/b/../usr"), b""),
        file("usr/lib/old"),
        file("kind/was-dir"),
        file("was-file"),
    ];
    // What hides stands behind what it does not hide.
    let above = [
        file("a/one"),
        file("a/.wh.one"),
        file("a/.wh.two"),
        file("a/.wh.never-there"),
        file("b/new"),
        file("b/.wh..wh..opq"),
        // What AUFS has for itself, and links to it.
        file("c/.wh..wh.aufs"),
        file(".wh..wh.plnk/1.2"),
        (("linked", b'1', ".wh..wh.plnk/1.2"), b""),
        // Names lead through links of a lower layer, and no further than to the root.
        file("lib/new"),
        file("up/new"),
        (("hard", b'1', "lib/old"), b""),
        file("kind"),
        file("was-file/in"),
    ];
    // A directory over a file.
    let last = [(("was-file", b'5', ""), &b""[..]), file("was-file/in")];
    let layers = [
        layout.layer(&below),
        layout.layer(&above[..13]),
        layout.layer(&last),
    ];
    layout.index(&[layout.manifest(&layers, "")]);
    layout.make(&[]).ok();
    let expected = [
        "a",
        "a/one",
        "a/three",
        "b",
        "b/new",
        "hard",
        "kind",
        "lib",
        "linked",
        "up",
        "usr",
        "usr/lib",
        "usr/lib/new",
        "usr/lib/old",
        "usr/new",
        "was-file",
        "was-file/in",
    ];
    assert_eq!(layout.names(), expected);
    assert!(debugfs(&layout.image(), "stat /a/three").contains("Links: 1"));
    assert!(debugfs(&layout.image(), "stat /hard").contains("Links: 2"));

    for (members, words) in [
        (&above[13..], "leads through was-file, which is a file"),
        (
            &[file("a/.wh.")][..],
            "member a/.wh.: does not say what is gone",
        ),
        (&[file("../.wh.x")], "leads out of the archive"),
        (&[(("x", b'1', "none"), &b""[..])], "no member before it"),
        (
            &[(("l", b'2', "l"), &b""[..]), file("l/x")],
            "too many symbolic links",
        ),
        // A link whose target has more names than there are on the way to it.
        (
            &[(("l", b'2', "a/one/x/y/z"), &b""[..]), file("l/f")],
            "leads through one, which is a file",
        ),
        (
            &[(("l", b'2', "m/../.."), &b""[..]), file("l/x")],
            "l/x: ..: this cannot be",
        ),
    ] {
        layout.index(&[layout.manifest(&[layout.layer(&below), layout.layer(members)], "")]);
        layout.make(&[]).fails(1, &["layer 2 of 2", words]);
    }
}

#[test]
fn the_image_for_the_platform_is_taken() {
    let layout = Layout::new();
    let of = |name: &str, platform: &str| {
        let words: Vec<&str> = platform.split('/').collect();
        let more = format!(
            r#","platform":{{"os":"{}","architecture":"{}"{}}}"#,
            words[0],
            words[1],
            words
                .get(2)
                .map_or(String::new(), |v| format!(r#","variant":"{v}""#))
        );
        layout.manifest(&[layout.layer(&[file(name)])], &more)
    };
    let all = [
        of("none", "unknown/unknown"),
        of("v6", "linux/arm/v6"),
        of("v7", "linux/arm/v7"),
        of("s390x", "linux/s390x"),
        of("amd64", "linux/amd64"),
        of("arm64", "linux/arm64"),
    ];
    let json = format!(r#"{{"manifests":[{}]}}"#, all.join(","));
    let named = r#","annotations":{"org.opencontainers.image.ref.name":"12",
        "io.containerd.image.name":"docker.io/library/debian:12"}"#;
    let nested = layout.blob("index.v1+json", json.as_bytes(), named);
    layout.index(&[nested]);
    let here = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else {
        "arm64"
    };
    for (args, name) in [
        (&[][..], here),
        (&["--platform", "linux/arm/v7"], "v7"),
        (&["--platform", "arm"], "v6"),
        (&["--platform", "s390x", "--tag", "debian:12"], "s390x"),
        (&["--platform", "s390x", "--tag", "12"], "s390x"),
    ] {
        layout.make(args).ok();
        assert_eq!(layout.names(), [name], "{args:?}");
    }
    let list = [
        "for linux/mips64; it holds some for linux/amd64, linux/arm/v6",
        "--platform",
    ];
    layout.make(&["--platform", "mips64"]).fails(1, &list);
    let other = ["holds no image debian:13; it holds docker.io/library/debian:12"];
    layout.make(&["--tag", "debian:13"]).fails(1, &other);
    layout
        .make(&["--platform", "a/b/c/d"])
        .fails(2, &["OS/ARCHITECTURE"]);
    // If there is one only, it is meant.
    layout.index(&all[..2]);
    layout.make(&[]).ok();
    assert_eq!(layout.names(), ["v6"]);
}

#[test]
fn what_is_not_as_its_digest_says_is_refused() {
    let layout = Layout::new();
    let layer = layout.layer(&[file("f")]);
    layout.index(&[layout.manifest(std::slice::from_ref(&layer), "")]);
    layout.make(&[]).ok();
    let sum = layer.split("sha256:").nth(1).unwrap();
    let path = format!("blobs/sha256/{}", &sum[..64]);
    let blob = layout.dir.join(&path);
    let mut bytes = fs::read(&blob).unwrap();
    bytes[1000] ^= 1;
    fs::write(&blob, &bytes).unwrap();
    layout
        .make(&[])
        .fails(1, &[&path, "is damaged: its digest is"]);
    fs::write(&blob, &bytes[1..]).unwrap();
    layout.make(&[]).fails(1, &[&path, "has not the size"]);
    fs::remove_file(&blob).unwrap();
    layout.make(&[]).fails(1, &[&path, "is not in the image"]);

    let outside = r#"{"mediaType":"application/vnd.oci.image.layer.v1.tar","size":1,
        "digest":"sha256:../../../../../etc/passwd"}"#;
    let secret = layer.replace("v1.tar", "v1.tar+encrypted");
    let chart = layer.replace(
        "application/vnd.oci.image.layer.v1.tar",
        "application/x-chart",
    );
    for (layer, words) in [
        (outside, "is no digest that is known"),
        (&secret, "encrypted"),
        (&chart, "is not the image of a container"),
    ] {
        layout.index(&[layout.manifest(&[layer.to_owned()], "")]);
        layout.make(&[]).fails(1, &[words]);
    }
    layout.index(&[]);
    layout.make(&[]).fails(1, &["holds no container image"]);

    fs::write(layout.dir.join("index.json"), "{").unwrap();
    layout.make(&[]).fails(1, &["oci-layout", "no index.json"]);

    // A directory and an archive that are no images are what they are.
    fs::remove_file(layout.dir.join("oci-layout")).unwrap();
    layout
        .make(&["--tag", "x"])
        .fails(1, &["is no container image"]);
    layout.make(&[]).ok();
    assert!(layout.names().contains(&"index.json".to_owned()));
}
