# The front of the build. `make demo` and `make test` work on a fresh Debian machine with a Rust toolchain:
# each installs what is missing (as root; otherwise it says what to install) and builds.

CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=
# mount(8) and umount(8) look for their helpers here and nowhere else.
SBINDIR ?= /sbin
TARGET  := $(or $(CARGO_TARGET_DIR),target)
STETFS  := $(TARGET)/release/stetfs
# The command is built in a call of its own: in one with others it would have the features that those ask for.
# e2fsprogs live in /sbin, which an ordinary user's path often lacks.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

.PHONY: help build extension demo ground quick test test-mtd test-ublk test-guest test-debian below-kills lint doc install uninstall bench-mount bench-lib bench-ageing bench-scale bench-snoop bench-crash bench-tx bench-fuse2fs bench-images lab-tables lab-check stress-export crash-joblib crash-programs planted explored crash-kernel crash-groups traces sqlite-kills postgres mariadb mutants ftl-long mkfs-long fuzz dist dist-test clean

help: ## This list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## The release build of the command: target/release/stetfs
	@scripts/deps.sh build
	$(CARGO) build --release --locked -p stetfs-cli

extension: ## The extension for SQLite: target/release/libstetfs_ffi.so (docs/SQLITE.md)
	@scripts/deps.sh build
	$(CARGO) build --release --locked -p stetfs-ffi

demo: ## Half a minute that shows it all: mount, SQLite, SIGKILL, recovery, e2fsck, the kernel's opinion
	@scripts/deps.sh demo
	$(CARGO) build --release --locked -p stetfs-cli
	@scripts/demo.sh $(STETFS)

quick: ## What a change is asked while it is made: formatting, tidiness, unit tests of the crates that it touches (BASE=COMMIT)
	@scripts/deps.sh test
	@CARGO="$(CARGO)" BASE="$(BASE)" scripts/quick.sh

test: ## Every test
	@scripts/deps.sh test
	@CARGO="$(CARGO)" scripts/test.sh

test-mtd: ## NAND parts behind Linux's MTD layer: the kernel's nandsim in an emulated machine (minutes; not in `make test`)
	@scripts/deps.sh mtd
	@CARGO="$(CARGO)" scripts/mtd.sh

test-ublk: ## `stetfs below --as ublk` under Debian 13's kernel in an emulated machine (minutes; not in `make test`)
	@scripts/deps.sh guest
	@CARGO="$(CARGO)" scripts/ublk.sh

test-guest: ## A virtual machine whose ext4 is on a volume below which a scheme commits, by NBD and by vhost-user, killed twice, in an emulated machine (two minutes; not in `make test`)
	@scripts/deps.sh guest
	@CARGO="$(CARGO)" scripts/guest.sh

test-debian: ## Debian whose root file system is on such a volume, killed twice, in an emulated machine (root; minutes; not in `make test`)
	@scripts/deps.sh debian
	@CARGO="$(CARGO)" scripts/debian.sh

below-kills: ## Kills of the server below the kernel's ext4, of a virtual machine on it, and of both (root; ROUNDS=100 each: an hour)
	@scripts/deps.sh guest
	@CARGO="$(CARGO)" scripts/below-kills.sh $(or $(ROUNDS),100)

lint: ## Formatting and clippy, as .ci/run has it
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

doc: ## The library's documentation: target/doc/stetfs/index.html
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

install: build ## Command, SQLite's extension, man pages, completions, mount helpers (PREFIX=/usr/local, DESTDIR=)
	$(CARGO) build --release --locked -p stetfs-lab -p stetfs-ffi
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) SBINDIR=$(SBINDIR) scripts/install.sh $(TARGET)/release

uninstall: ## Takes away what install put there
	PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) SBINDIR=$(SBINDIR) scripts/install.sh --remove

bench-mount: ## Mounted speed beside the kernel's ext4 and a floor that keeps everything in memory (ARGS=--help)
	@scripts/deps.sh bench
	$(CARGO) build --release --locked -p stetfs-cli
	$(CARGO) build --release --locked -p stetfs-bench
	$(TARGET)/release/bench-mount $(ARGS)

bench-lib: ## The library's speed on a volume in memory, without a mount, beside the kernel's ext4 (ARGS=--help)
	@scripts/deps.sh bench
	$(CARGO) build --release --locked -p stetfs-bench
	$(TARGET)/release/bench-lib $(ARGS)

bench-ageing: ## Extents and reading speed after many volumes of random overwrites, beside the kernel's file systems (ARGS=--help)
	@scripts/deps.sh bench
	$(CARGO) build --release --locked -p stetfs-cli
	$(CARGO) build --release --locked -p stetfs-bench
	$(TARGET)/release/bench-ageing $(ARGS)

bench-scale: ## The cost of an operation by the number of files, open files and clients, with charts (ARGS=--help; hours for ten million files)
	@scripts/deps.sh bench
	$(CARGO) build --release --locked -p stetfs-cli
	$(CARGO) build --release --locked -p stetfs-bench
	$(TARGET)/release/bench-scale $(ARGS)

bench-snoop: ## Pages that the kernel's ext4 programs on an exported NAND part, with and without snooping (root)
	@scripts/deps.sh bench
	$(CARGO) build --release --locked -p stetfs-cli
	@scripts/snoop.sh $(STETFS)

bench-tx: build ## What `stetfs tx` adds to a command, and what the server takes of that (root; ROUNDS=5)
	@scripts/bench-tx.sh $(STETFS) $(or $(ROUNDS),5)

bench-fuse2fs: build ## stetfs called as fuse2fs beside the fuse2fs of e2fsprogs (WHEELS=DIR with wheels for pip; ROUNDS=5)
	@scripts/bench-fuse2fs.sh $(STETFS) $(or $(WHEELS),$(error WHEELS= a directory with wheels for pip)) $(or $(ROUNDS),5)

bench-images: build ## A hundred thousand files into an image by each way there is: ours, mke2fs, debugfs, fuse2fs, the kernel (ROUNDS=5, FILES=100000)
	@scripts/bench-images.sh $(STETFS) $(or $(ROUNDS),5) $(or $(FILES),100000)

bench-crash: build ## States that `stetfs crash -- PROGRAM` judges in a second, and how much recording slows a program (ROUNDS=3)
	@scripts/bench-crash.sh $(STETFS) $(or $(ROUNDS),3)

ground: ## All schemes on one ground: target/ground.html, .csv and .json, and docs/ground.svg (under an hour; goes on where it was stopped; ARGS="--jobs 1")
	@scripts/deps.sh build
	$(CARGO) build --release --locked -q -p stetfs-lab
	$(TARGET)/release/stetfs-lab ground --resume $(TARGET)/lab --docs docs --html $(TARGET)/ground.html --csv $(TARGET)/ground.csv \
		--json $(TARGET)/ground.json --svg docs/ground.svg --summary docs/ground.json $(ARGS)

lab-tables: ## docs/LAB.md's tables from results/reports; with ARGS="dj-fig12 ..." (or all) these experiments are run and kept anew before
	@scripts/deps.sh build
	$(CARGO) run --release --locked -q -p stetfs-lab --bin lab-tables -- $(ARGS)

lab-check: ## Whether every experiment gives the report that is kept of it (long; `make test` sees it on a small scale)
	@scripts/deps.sh build
	$(CARGO) test --release --locked -p stetfs-lab --test reports -- --ignored --nocapture

stress-export: ## What holds when an exported part's server and its users share too little memory (root)
	@scripts/deps.sh test
	$(CARGO) build --release --locked -p stetfs-cli
	@scripts/export-stress.sh $(STETFS) $(ARGS)

crash-joblib: build ## Whether shards of an exploration add up on joblib's backend loky and on a local Dask cluster (packages from PyPI)
	@scripts/joblib/test.sh $(STETFS)

crash-programs: build ## docs/CRASH.md's table of real programs; with ROWS="git-all redis-always ..." these are run, otherwise all (half an hour; Go 1.26 for bbolt and etcd)
	@scripts/deps.sh programs
	@scripts/programs/table.py $(STETFS) $(ROWS)

planted: ## Whether the crash explorer finds every bug that can be planted (long)
	@scripts/deps.sh test
	$(CARGO) test --locked -p stetfs-crash --test planted -- --ignored --nocapture

crash-kernel: ## Whether the models ext4-* allow what the kernel's own ext4 leaves of drawn programs (root; minutes; STETFS_KERNEL_CASES=100 STETFS_KERNEL_SEED=1)
	@scripts/deps.sh test
	$(CARGO) test --locked -p stetfs-powercut --test blocks -- --ignored --nocapture

crash-groups: ## Power cuts of all sequences with a group, in every scheme (hours; STETFS_LAB_SCHEME=jbd2: one, STETFS_LAB_SHARD=1/9: a part)
	@scripts/deps.sh test
	$(CARGO) test --locked -p stetfs-crash --test power_cuts -- --ignored --nocapture every_sequence_with_a_group

explored: ## results/explored.md's tables of explorations; with ROWS="jbd2-journal-short dj ..." (or all) these are made anew before: each workload once, then BUDGET=10m each (go on by the same again)
	@scripts/deps.sh test
	$(CARGO) run --release --locked -q -p stetfs-crash --bin explored -- --resume $(TARGET)/explored $(if $(BUDGET),--budget $(BUDGET)) $(if $(JOBS),--jobs $(JOBS)) $(ROWS)

traces: ## results/traces: what each scheme changes on its media while one short list of operations is done; diff two of them
	@scripts/deps.sh test
	STETFS_LAB_WRITE=1 $(CARGO) test --locked -p stetfs-crash --test traces

sqlite-kills: ## The sqlite3 shell with the extension, killed a thousand times as it commits (KILLS=1000)
	@scripts/deps.sh test
	STETFS_SQLITE_KILLS=$(or $(KILLS),1000) $(CARGO) test --locked -p stetfs-tests --test sqlite -- what_was_committed

postgres: build ## PostgreSQL without full_page_writes on files that are marked atomic, killed again and again (ROUNDS=20); needs root
	@scripts/deps.sh databases
	@scripts/postgres.sh $(STETFS) $(or $(ROUNDS),20)

mariadb: build ## MariaDB without InnoDB's doublewrite buffer on such files, killed again and again (ROUNDS=20); needs root
	@scripts/deps.sh databases
	@scripts/mariadb.sh $(STETFS) $(or $(ROUNDS),20)

mutants: ## Whether the tests and the explorer notice changes of the code, made by the thousand (weeks; SAMPLE=300 SEED=1 for so many at random, SHARD=1/8 for a part, RESUME=1 to go on); needs cargo-gamma
	@scripts/deps.sh test
	@CARGO="$(CARGO)" scripts/mutants.sh $(if $(RESUME),--resume) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(SHARD),--shard $(SHARD)) $(ARGS)

ftl-long: ## The flash translation layer at length: ten million steps against the model, every power cut of longer runs
	$(CARGO) test --release --locked -p stetfs-ftl -- --ignored --nocapture

mkfs-long: ## Some thousand volumes of drawn sizes and options beside those of mke2fs, byte for byte (STETFS_MKFS_CASES=3000 STETFS_MKFS_SEED=1)
	@scripts/deps.sh test
	$(CARGO) test --release --locked -p stetfs-mkfs --test peer -- --ignored --nocapture

fuzz: ## Every fuzz target for a while (SECONDS_EACH=60); needs cargo-fuzz
	@scripts/deps.sh fuzz
	@scripts/fuzz.sh

dist: ## What is given away of a release, into target/packages: sources, static program, Debian packages, wheel, rpm (KINDS="deb wheel"); docs/INSTALL.md
	@CARGO="$(CARGO)" scripts/dist.sh $(KINDS)

dist-test: ## All that as its users install it: in clean roots of Debian 12 and 13, without the sources; needs root
	@scripts/dist-test.sh $(KINDS)

clean: ## Build results
	$(CARGO) clean
