//! The server against a client of the test's own, and against clients that break every rule.
//! Programs that speak NBD are asked in `crates/cli/tests`.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use stetfs_media::RamDev;

use super::handshake::{Agreed, agree};
use super::protocol::*;
use super::transmission::{Connection, Export};
use super::{Address, Listener, NbdError, Server};
use crate::testing::{Held, Random};
use crate::{ByteDev, SocketError};

const SIZE: u64 = Held::SIZE;

/// A server in a directory of its own.
struct Served {
    server: Option<Server>,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Served {
    fn new(dev: Arc<ByteDev>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = Listener::bind(&Address::Unix(socket.clone()), false).unwrap();
        Self {
            server: Some(Server::start(listener, dev).unwrap()),
            socket,
            _dir: dir,
        }
    }

    fn client(&self) -> Client {
        let mut client = Client(UnixStream::connect(&self.socket).unwrap());
        client.0.write_all(&opening(3)).unwrap();
        client.0.write_all(&option(OPT_EXPORT_NAME, &[])).unwrap();
        let mut head = [0; 18 + 10];
        client.0.read_exact(&mut head).unwrap();
        client
    }

    fn stop(&mut self) {
        drop(self.server.take().unwrap());
    }
}

/// A client whose handshake is over.
struct Client(UnixStream);

impl Client {
    fn send(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) {
        let bytes = request(command, flags, u64::from(command), offset, len);
        self.0.write_all(&[&bytes, data].concat()).unwrap();
    }

    /// The next reply: the error and the cookie.
    fn reply(&mut self) -> io::Result<(u32, u64)> {
        let mut head = [0; 16];
        self.0.read_exact(&mut head)?;
        let mut fields = Fields(&head);
        assert_eq!(fields.u32(), SIMPLE_REPLY_MAGIC);
        Ok((fields.u32(), fields.u64()))
    }

    /// A request and the error of its reply.
    fn ask(&mut self, command: u16, flags: u16, offset: u64, len: u32, data: &[u8]) -> u32 {
        self.send(command, flags, offset, len, data);
        let (error, cookie) = self.reply().unwrap();
        assert_eq!(cookie, u64::from(command));
        error
    }

    fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        assert_eq!(self.ask(CMD_READ, 0, offset, len, &[]), 0);
        let mut data = vec![0xee; len as usize];
        self.0.read_exact(&mut data).unwrap();
        data
    }
}

/// What a client sends first.
fn opening(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
fn wanted(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut bytes = (name.len() as u32).to_be_bytes().to_vec();
    bytes.extend(name);
    bytes.extend((kinds.len() as u16).to_be_bytes());
    bytes.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    bytes
}

fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

fn export() -> Export {
    Export {
        dev: Arc::new(ByteDev::new(Arc::new(RamDev::new(SIZE)))),
        is_ending: AtomicBool::new(false),
        requests: AtomicU64::new(0),
    }
}

/// What the server says to these bytes, and how the handshake ends.
fn haggle(said: &[u8]) -> (Vec<u8>, Result<Agreed, NbdError>) {
    let mut answers = Vec::new();
    let agreed = agree(&mut &*said, &mut answers, &export().dev);
    (answers, agreed)
}

/// The replies to options behind the greeting: kind and data.
fn replies(answers: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut rest = &answers[18..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        let mut fields = Fields(rest);
        assert_eq!(fields.u64(), OPTION_REPLY_MAGIC);
        let (_, kind, len) = (fields.u32(), fields.u32(), fields.u32() as usize);
        found.push((kind, fields.0[..len].to_vec()));
        rest = &fields.0[len..];
    }
    found
}

#[test]
fn the_handshake_offers_one_export() {
    let info = wanted(b"", &[INFO_BLOCK_SIZE, 77]);
    let said = [
        opening(1),
        option(OPT_LIST, &[]),
        option(OPT_LIST, b"data"),
        option(5, &[]),
        option(OPT_INFO, &wanted(b"other", &[])),
        option(OPT_INFO, &info[..info.len() - 1]),
        option(OPT_INFO, &[0xff; 6]),
        option(OPT_GO, &info),
    ];
    let (answers, agreed) = haggle(&said.concat());
    assert_eq!(agreed.unwrap(), Agreed::Transmission);
    let replies = replies(&answers);
    let kinds: Vec<_> = replies.iter().map(|(kind, _)| *kind).collect();
    let expected = [
        REP_SERVER,
        REP_ACK,
        REP_ERR_INVALID,
        REP_ERR_UNSUP,
        REP_ERR_UNKNOWN,
        REP_ERR_INVALID,
        REP_ERR_INVALID,
        REP_INFO,
        REP_INFO,
        REP_ACK,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(replies[0].1[..4], [0; 4], "the name is empty");
    let mut export = Fields(&replies[7].1);
    let flags =
        (HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM) | (SEND_WRITE_ZEROES | CAN_MULTI_CONN);
    assert_eq!(
        (export.u16(), export.u64(), export.u16()),
        (INFO_EXPORT, SIZE, flags)
    );
    let mut sizes = Fields(&replies[8].1);
    let found = (sizes.u16(), sizes.u32(), sizes.u32(), sizes.u32());
    assert_eq!(found, (INFO_BLOCK_SIZE, 512, 4096, MOST_PAYLOAD));
}

#[test]
fn the_handshake_of_old_clients() {
    for (flags, padding) in [(1, 124), (3, 0)] {
        let (answers, agreed) = haggle(&[opening(flags), option(OPT_EXPORT_NAME, &[])].concat());
        assert_eq!(agreed.unwrap(), Agreed::Transmission);
        assert_eq!(answers.len(), 18 + 10 + padding);
        assert_eq!(Fields(&answers[18..]).u64(), SIZE);
    }
    let (answers, agreed) = haggle(&[opening(1), option(OPT_ABORT, &[])].concat());
    assert_eq!(agreed.unwrap(), Agreed::Left);
    assert_eq!(replies(&answers), [(REP_ACK, Vec::new())]);
    assert_eq!(haggle(&[]).1.unwrap(), Agreed::Left);
}

#[test]
fn a_violation_of_the_handshake_has_a_name() {
    let refused = |said: &[Vec<u8>]| haggle(&said.concat()).1.unwrap_err();
    assert!(matches!(
        refused(&[opening(5)]),
        NbdError::ClientFlags { flags: 5 }
    ));
    let wrong = refused(&[opening(1), vec![7; 16]]);
    assert!(matches!(wrong, NbdError::OptionMagic { .. }));
    let named = refused(&[opening(1), option(OPT_EXPORT_NAME, b"x")]);
    assert!(matches!(named, NbdError::NoSuchExport));
    let mut long = option(OPT_LIST, &[]);
    long[12..].fill(0xff);
    let long = refused(&[opening(1), long]);
    assert!(matches!(long, NbdError::OptionLength { len: u32::MAX, .. }));
    let endless = option(OPT_LIST, &[]).repeat(2000);
    assert!(matches!(
        refused(&[opening(1), endless]),
        NbdError::TooManyOptions { .. }
    ));
    let cut = refused(&[opening(1), option(OPT_LIST, b"data")[..18].to_vec()]);
    assert!(matches!(cut, NbdError::Ended { what: "an option" }));
}

/// Random requests on two connections, against a plain list of bytes.
#[test]
fn requests_do_what_they_do_to_a_plain_file() {
    let served = Served::new(export().dev);
    let mut clients = [served.client(), served.client()];
    let mut model = vec![0u8; SIZE as usize];
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for n in 0..3000 {
        let client = &mut clients[random.below(2) as usize];
        let offset = random.below(SIZE);
        let most = (SIZE - offset).min(1 << random.below(16));
        let len = random.below(most + 1);
        let range = offset as usize..(offset + len) as usize;
        let fua = random.below(2) as u16 * CMD_FLAG_FUA;
        let mut ask = |command, flags, data: &[u8]| {
            let error = client.ask(command, flags, offset, len as u32, data);
            assert_eq!(error, 0, "request {n}: {command} of {offset} + {len}");
        };
        match random.below(6) {
            0 | 1 => {
                let data: Vec<u8> = range.clone().map(|i| (i + n) as u8 | 1).collect();
                ask(CMD_WRITE, fua, &data);
                model[range].copy_from_slice(&data);
            }
            2 => {
                ask(CMD_TRIM, fua, &[]);
                model[range].fill(0);
            }
            3 => {
                ask(CMD_WRITE_ZEROES, fua | CMD_FLAG_NO_HOLE, &[]);
                model[range].fill(0);
            }
            4 => assert_eq!(client.ask(CMD_FLUSH, fua, 0, 0, &[]), 0),
            _ => {
                let found = client.read(offset, len as u32);
                assert!(found == model[range], "request {n}: {offset} + {len}");
            }
        }
    }
}

#[test]
fn what_cannot_be_done_is_refused_and_the_connection_goes_on() {
    let (watched, _begun) = Held::new(1 << 20);
    let served = Served::new(watched.bytes());
    let mut client = served.client();
    let end = SIZE - 1;
    assert_eq!(client.ask(CMD_WRITE, 0, end, 2, b"ab"), 28);
    assert_eq!(client.ask(CMD_WRITE_ZEROES, 0, u64::MAX, 2, &[]), 28);
    for command in [CMD_READ, CMD_TRIM] {
        assert_eq!(client.ask(command, 0, end, 2, &[]), 22);
        assert_eq!(client.ask(command, 0, u64::MAX, u32::MAX, &[]), 22);
    }
    // Structured replies, block status, and what nobody has heard of.
    assert_eq!(client.ask(5, 0, 0, 0, &[]), 22);
    assert_eq!(client.ask(7, 0, 0, 512, &[]), 22);
    assert_eq!(client.ask(CMD_READ, 4, 0, 512, &[]), 22);
    assert_eq!(client.ask(CMD_WRITE, CMD_FLAG_NO_HOLE, 0, 3, b"abc"), 22);
    watched.set_failing(true);
    assert_eq!(client.ask(CMD_READ, 0, 0, 512, &[]), 5);
    watched.set_failing(false);
    assert_eq!(client.read(0, 512), vec![0; 512]);
    assert_eq!(client.ask(CMD_READ, 0, 0, 0, &[]), 0);
}

/// Only its own write is durable when a write with forced unit access is answered, and a flush on
/// one connection covers what another one has written.
#[test]
fn a_flush_reaches_the_device_before_its_answer() {
    let (watched, _begun) = Held::new(1 << 20);
    let served = Served::new(watched.bytes());
    let (mut one, mut other) = (served.client(), served.client());
    let mut flushes = 0;
    for (command, flags, adds) in [
        (CMD_WRITE, 0, 0),
        (CMD_WRITE, CMD_FLAG_FUA, 1),
        (CMD_TRIM, 0, 0),
        (CMD_TRIM, CMD_FLAG_FUA, 1),
        (CMD_WRITE_ZEROES, 0, 0),
        (CMD_WRITE_ZEROES, CMD_FLAG_FUA, 1),
        (CMD_FLUSH, 0, 1),
    ] {
        let data: &[u8] = if command == CMD_WRITE { &[7; 100] } else { &[] };
        assert_eq!(one.ask(command, flags, 0, 100, data), 0);
        flushes += adds;
        assert_eq!(
            watched.flushes(),
            flushes,
            "command {command}, flags {flags}"
        );
    }
    assert_eq!(one.ask(CMD_WRITE, 0, 512, 4, b"here"), 0);
    assert_eq!(other.ask(CMD_FLUSH, 0, 0, 0, &[]), 0);
    assert_eq!(watched.flushes(), flushes + 1);
    assert_eq!(other.read(512, 4), b"here");
}

/// A read on the same connection does not wait for a flush, and the server's end does.
#[test]
fn requests_run_at_the_same_time_and_are_finished_at_the_end() {
    let (watched, begun) = Held::new(0);
    let mut served = Served::new(watched.bytes());
    let mut client = served.client();
    client.send(CMD_FLUSH, 0, 0, 0, &[]);
    begun.recv().unwrap();
    client.read(0, 512);
    let (stopped, is_stopped) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            served.stop();
            stopped.send(()).unwrap();
        });
        // New requests are not taken: the server reads none any more.
        while client.0.write_all(&request(CMD_READ, 0, 1, 0, 512)).is_ok() {
            thread::yield_now();
        }
        assert!(
            is_stopped.try_recv().is_err(),
            "stopped with a flush under way"
        );
        watched.allow();
        let replies = std::iter::from_fn(|| {
            let (error, cookie) = client.reply().ok()?;
            if cookie != u64::from(CMD_FLUSH) {
                client.0.read_exact(&mut [0; 512]).unwrap();
            }
            Some((error, cookie))
        });
        assert!(
            replies
                .into_iter()
                .any(|reply| reply == (0, CMD_FLUSH.into()))
        );
        is_stopped.recv().unwrap();
    });
    assert!(!served.socket.exists());
}

#[test]
fn a_client_that_breaks_the_rules_loses_its_connection_alone() {
    let served = Served::new(export().dev);
    let mut good = served.client();
    let breaks: [&[u8]; 3] = [
        &[0xab; 28],
        &request(CMD_WRITE, 0, 1, 0, MOST_PAYLOAD + 1),
        &request(CMD_DISC, 0, 1, 0, 0),
    ];
    for bytes in breaks {
        let mut bad = served.client();
        bad.0.write_all(bytes).unwrap();
        assert_eq!(bad.0.read(&mut [0; 16]).unwrap_or(0), 0);
    }
    let mut cut = served.client();
    cut.send(CMD_WRITE, 0, 0, 1000, &[1; 999]);
    cut.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(cut.0.read(&mut [0; 16]).unwrap_or(0), 0);
    assert_eq!(
        good.read(0, 1000),
        vec![0; 1000],
        "nothing of a write that was cut"
    );
}

#[test]
fn there_is_a_bound_for_connections() {
    let served = Served::new(export().dev);
    let mut clients: Vec<_> = (0..32).map(|_| served.client()).collect();
    let mut more = UnixStream::connect(&served.socket).unwrap();
    assert_eq!(
        more.read(&mut [0; 18]).unwrap(),
        0,
        "one too many is sent away"
    );
    let stats = served.server.as_ref().unwrap().stats();
    assert_eq!((stats.connections, stats.accepted), (32, 32));
    assert_eq!(clients[31].ask(CMD_FLUSH, 0, 0, 0, &[]), 0);
}

#[test]
fn addresses() {
    let tcp = |text: &str| Address::Tcp(text.to_owned());
    let unix = |text: &str| Address::Unix(text.into());
    let parse = |text: &str| Address::parse(text.as_ref());
    assert_eq!(parse("localhost:10809"), tcp("localhost:10809"));
    assert_eq!(parse("[::1]:0"), tcp("[::1]:0"));
    for path in ["/run/a:1", "./a:1", "socket", "a:b", ":1", "a:70000"] {
        assert_eq!(parse(path), unix(path));
    }
    let refused = Listener::bind(&tcp("0.0.0.0:0"), false).map(drop);
    assert!(matches!(refused, Err(NbdError::NotLocal { .. })));
    let listener = Listener::bind(&tcp("127.0.0.1:0"), false).unwrap();
    assert!(listener.uri().starts_with("nbd://127.0.0.1:"));
    let dir = tempfile::tempdir().unwrap();
    let [file, socket] = ["file", "a b"].map(|name| dir.path().join(name));
    std::fs::write(&file, "").unwrap();
    let bind = |path: &PathBuf| Listener::bind(&Address::Unix(path.clone()), false);
    assert!(matches!(
        bind(&file),
        Err(NbdError::Socket(SocketError::Exists { .. }))
    ));
    let listener = bind(&socket).unwrap();
    assert!(listener.uri().ends_with("/a%20b"));
    assert!(matches!(
        bind(&socket),
        Err(NbdError::Socket(SocketError::Served { .. }))
    ));
    // A server that was killed leaves its socket.
    std::mem::forget(std::os::unix::net::UnixListener::bind(dir.path().join("kept")).unwrap());
    drop(listener);
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    bind(&socket).unwrap();
}

/// xorshift64.
/// A conversation that keeps the rules: each kind of option, each kind of request.
fn conversation(random: &mut Random) -> Vec<u8> {
    let mut said = opening(random.below(4) as u32);
    let info = wanted(b"", &[INFO_BLOCK_SIZE]);
    for _ in 0..random.below(4) {
        said.extend(match random.below(4) {
            0 => option(OPT_LIST, &[]),
            1 => option(OPT_INFO, &info),
            2 => option(OPT_INFO, &wanted(b"name", &[])),
            _ => option(random.below(20) as u32 + 8, b"what"),
        });
    }
    said.extend(match random.below(8) {
        0 => option(OPT_ABORT, &[]),
        1 => option(OPT_EXPORT_NAME, &[]),
        _ => option(OPT_GO, &info),
    });
    for cookie in 0..random.below(8) {
        let command = random.below(8) as u16;
        let offset = random.below(SIZE);
        let len = random.below(3000);
        said.extend(request(command, 0, cookie, offset, len as u32));
        let data = if command == CMD_WRITE { len } else { 0 };
        said.extend((0..data).map(|n| n as u8));
    }
    said
}

/// Conversations that are cut, changed and made of noise end with a name or without an error, and
/// leave the device as large as it was.
#[test]
fn no_bytes_of_a_client_do_harm() {
    let seed = std::env::var("STETFS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(0x9e37_79b9_7f4a_7c15);
    println!("replay with STETFS_SEED={seed}");
    let mut random = Random(seed);
    let export = export();
    let mut ends = [0; 3];
    for n in 0..2000 {
        let mut said = conversation(&mut random);
        let cut = random.below(said.len() as u64 + 1) as usize;
        match n % 3 {
            0 => said.truncate(cut),
            1 => {
                for _ in 0..=random.below(4) {
                    let at = random.below(said.len() as u64) as usize;
                    said[at] ^= 1 << random.below(8);
                }
            }
            _ => said[cut..].fill_with(|| random.below(256) as u8),
        }
        let (mut reader, mut answers) = (&*said, Vec::new());
        let ended = match agree(&mut reader, &mut answers, &export.dev) {
            Ok(Agreed::Transmission) => Connection::new(&export, reader, answers)
                .serve(&|| {})
                .map(|()| 1),
            ended => ended.map(|_| 0),
        };
        match ended {
            Ok(how) => ends[how] += 1,
            Err(NbdError::Io(error)) => panic!("{n}: {error}"),
            Err(_) => ends[2] += 1,
        }
    }
    assert!(ends.iter().all(|count| *count > 50), "{ends:?}");
    assert!(export.requests.load(Ordering::Relaxed) > 500);
}
