// Command verify checks a tlog-proof with Go's own checksum-database code.
//
//	verify VKEY LEAF-FILE PROOF-FILE
//
// It shares nothing with Tallystick but the file formats: note.Open checks the
// checkpoint's signature, tlog.CheckRecord the inclusion of the leaf.
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 {
		log.Fatal("usage: verify VKEY LEAF-FILE PROOF-FILE")
	}
	leaf, proof := read(os.Args[2]), string(read(os.Args[3]))
	header, checkpoint, found := strings.Cut(proof, "\n\n")
	if !found {
		log.Fatal("no empty line between the proof and its checkpoint")
	}
	size, root := open(os.Args[1], checkpoint)
	index, path := parse(header)
	if err := tlog.CheckRecord(path, size, root, index, tlog.RecordHash(leaf)); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("go sumdb: leaf %d is in the tree of size %d\n", index, size)
}

func read(name string) []byte {
	content, err := os.ReadFile(name)
	if err != nil {
		log.Fatal(err)
	}
	return content
}

func open(vkey, checkpoint string) (int64, tlog.Hash) {
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		log.Fatal(err)
	}
	opened, err := note.Open([]byte(checkpoint), note.VerifierList(verifier))
	if err != nil {
		log.Fatal(err)
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) != 4 || lines[0] != verifier.Name() {
		log.Fatalf("not a checkpoint of %s", verifier.Name())
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return size, hash(lines[2])
}

func parse(header string) (int64, tlog.RecordProof) {
	lines := strings.Split(header, "\n")
	if len(lines) < 2 || lines[0] != "c2sp.org/tlog-proof@v1" {
		log.Fatal("not a tlog-proof")
	}
	index, err := strconv.ParseInt(strings.TrimPrefix(lines[1], "index "), 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	var path tlog.RecordProof
	for _, line := range lines[2:] {
		path = append(path, hash(line))
	}
	return index, path
}

func hash(text string) tlog.Hash {
	parsed, err := tlog.ParseHash(text)
	if err != nil {
		log.Fatal(err)
	}
	return parsed
}
