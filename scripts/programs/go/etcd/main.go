// etcd's write-ahead log: eight entries, promised when Save returns.
// It writes each in two parts. etcd run|check 2|3 (the major version)
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const entries = 8

// A version of the log.
type version struct {
	// Makes a log; gives what saves an entry in it.
	create func(dir string) (func(number uint64, data []byte) error, error)
	// Whether there is a log, as etcd asks when it starts.
	exist func(dir string) bool
	// Opens a log and reads all entries.
	read func(dir string) ([][]byte, error)
	// Repairs a log that ends too early.
	repair func(dir string) bool
}

func main() {
	version := map[string]version{"2": v2, "3": v3}[os.Args[2]]
	dir := os.Getenv("STETFS_DIR") + "/wal"
	if os.Args[1] == "check" {
		check(version, dir)
		return
	}
	save, err := version.create(dir)
	fatal(err)
	for number := uint64(1); number <= entries; number++ {
		fatal(save(number, data(number)))
		fatal(os.WriteFile(os.Getenv("STETFS_MARKS"), fmt.Appendln(nil, number), 0))
	}
	// As a program that is killed: nothing is closed.
}

func check(version version, dir string) {
	text, err := os.ReadFile(os.Getenv("STETFS_MARKS_FILE"))
	fatal(err)
	promised := len(strings.Fields(string(text)))
	if !version.exist(dir) {
		if promised > 0 {
			fatal(errors.New("the log is lost"))
		}
		return
	}
	found, err := version.read(dir)
	// As etcd does when it starts: it repairs nothing else, and nothing twice.
	if errors.Is(err, io.ErrUnexpectedEOF) && version.repair(dir) {
		found, err = version.read(dir)
	}
	fatal(err)
	for at, got := range found {
		if !bytes.Equal(got, data(uint64(at+1))) {
			fatal(fmt.Errorf("entry %d is damaged", at+1))
		}
	}
	if len(found) < promised {
		fatal(fmt.Errorf("entry %d was promised, and is lost", promised))
	}
}

func data(number uint64) []byte { return bytes.Repeat(fmt.Append(nil, number), 6000) }

func fatal(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
