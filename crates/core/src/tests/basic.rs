//! The main path: mount, create, write, read, unmount, on every kind of volume.

use crate::testing::{Image, KINDS};
use crate::{Caller, Error, OpenFlags};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn mount_and_unmount_leave_a_clean_image() {
    for (kind, args) in KINDS {
        let image = Image::new(16, args);
        let fs = image.mount("");
        fs.unmount().unwrap();
        assert!(matches!(fs.statfs(), Err(Error::ShutDown)), "{kind}");
        image.assert_clean();
    }
}

#[test]
fn what_was_written_is_read_again() {
    for (kind, args) in KINDS {
        for data in ["journal", "ordered", "writeback"] {
            let image = Image::new(16, args);
            let c = Caller::root();
            let fs = image.mount(&format!("data={data}"));
            let dir = fs.mkdir(&c, fs.root(), b"dir", 0o755).unwrap();
            let file = fs.create(&c, dir.ino, b"file", 0o644, RW).unwrap();
            let content: Vec<u8> = (0..300_000u32).flat_map(|i| i.to_le_bytes()).collect();
            let mut at = 0;
            for part in content.chunks(70_001) {
                assert_eq!(fs.write(&c, file.ino, at as u64, part).unwrap(), part.len());
                at += part.len();
            }
            let check = |fs: &crate::Fs| {
                let file = fs.resolve(&c, b"/dir/file", true).unwrap();
                assert_eq!(file.attr.size, content.len() as u64);
                let mut out = vec![0; content.len() + 10];
                assert_eq!(fs.read(file.ino, 0, &mut out).unwrap(), content.len());
                assert!(out[..content.len()] == content[..], "{kind} {data}");
                let mut out = vec![0; 5000];
                assert_eq!(fs.read(file.ino, 12_345, &mut out).unwrap(), 5000);
                assert_eq!(out, content[12_345..17_345]);
            };
            check(&fs);
            fs.fsync(file.ino, false).unwrap();
            check(&fs);
            fs.release(file.ino).unwrap();
            fs.unmount().unwrap();
            image.assert_clean();
            let fs = image.mount("ro");
            check(&fs);
            fs.unmount().unwrap();
        }
    }
}
