// bbolt: four transactions of two keys each, promised when they are committed.
// bbolt setup|run|check sync|nosync|nofreelistsync|nogrowsync
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	bolt "go.etcd.io/bbolt"
)

var options = map[string]bolt.Options{
	"sync":           {},
	"nosync":         {NoSync: true},
	"nofreelistsync": {NoFreelistSync: true},
	"nogrowsync":     {NoGrowSync: true},
}

func main() {
	verb, mode := os.Args[1], options[os.Args[2]]
	path := os.Getenv("STETFS_DIR") + "/data.db"
	if verb == "check" {
		check(path, mode)
		return
	}
	db, err := bolt.Open(path, 0o600, &mode)
	fatal(err)
	// A file that grows by little, often.
	db.AllocSize = 32 << 10
	if verb == "setup" {
		fatal(db.Close())
		return
	}
	for number := range 4 {
		fatal(db.Update(func(tx *bolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("b"))
			for _, half := range "ab" {
				if err == nil {
					err = bucket.Put(key(number, half), value(number))
				}
			}
			return err
		}))
		fatal(os.WriteFile(os.Getenv("STETFS_MARKS"), fmt.Appendln(nil, number), 0))
	}
	// As a program that is killed: nothing is closed.
}

func check(path string, mode bolt.Options) {
	text, err := os.ReadFile(os.Getenv("STETFS_MARKS_FILE"))
	fatal(err)
	promised := strings.Fields(string(text))
	db, err := bolt.Open(path, 0o600, &mode)
	fatal(err)
	fatal(db.View(func(tx *bolt.Tx) error {
		var damage error
		for err := range tx.Check() {
			damage = err
		}
		if damage != nil {
			return damage
		}
		for number := range 4 {
			found := 0
			if bucket := tx.Bucket([]byte("b")); bucket != nil {
				for _, half := range "ab" {
					got := bucket.Get(key(number, half))
					if got != nil && !bytes.Equal(got, value(number)) {
						return fmt.Errorf("transaction %d is damaged", number)
					}
					if got != nil {
						found++
					}
				}
			}
			if found == 1 {
				return fmt.Errorf("half of transaction %d", number)
			}
			if found == 0 && number < len(promised) {
				return fmt.Errorf("transaction %d was promised, and is lost", number)
			}
		}
		return nil
	}))
}

func key(number int, half rune) []byte { return fmt.Appendf(nil, "%d%c", number, half) }

func value(number int) []byte { return bytes.Repeat(fmt.Append(nil, number), 6000) }

func fatal(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
