// Command tiles reads a ledger over HTTP with Go's own checksum-database code.
//
//	tiles VKEY URL...
//
// Each URL serves another size of one ledger. Checkpoints are opened by
// sumdb/note; every tile goes through tlog.TileHashReader, which proves it
// against the checkpoint's root; entries are hashed and looked up; consistency
// is proven and checked between all pairs of sizes.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A ledger is a tile reader over HTTP. C2SP writes a tile of height 8 without
// the height, and entry bundles as tile/entries.
type ledger struct {
	url  string
	tree tlog.Tree
	got  map[string]bool
}

func (l *ledger) Height() int { return 8 }

func (l *ledger) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var all [][]byte
	for _, tile := range tiles {
		path := "tile/" + strings.TrimPrefix(tile.Path(), "tile/8/")
		data, err := get(l.url + "/" + path)
		if err != nil {
			return nil, err
		}
		l.got[path] = true
		all = append(all, data)
	}
	return all, nil
}

func (l *ledger) SaveTiles([]tlog.Tile, [][]byte) {}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: tiles VKEY URL...")
	}
	var ledgers []*ledger
	for _, url := range os.Args[2:] {
		l := open(os.Args[1], url)
		l.checkRoot()
		l.checkEntries()
		ledgers = append(ledgers, l)
		fmt.Printf("go sumdb: %d entries, %d tiles\n", l.tree.N, len(l.got))
	}
	pairs := 0
	for _, newer := range ledgers {
		for _, older := range ledgers {
			if older.tree.N <= newer.tree.N {
				newer.checkExtends(older)
				pairs++
			}
		}
	}
	fmt.Printf("go sumdb: %d pairs are consistent\n", pairs)
}

func get(url string) ([]byte, error) {
	response, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

func open(vkey, url string) *ledger {
	verifier, err := note.NewVerifier(vkey)
	must(err)
	data, err := get(url + "/checkpoint")
	must(err)
	opened, err := note.Open(data, note.VerifierList(verifier))
	must(err)
	lines := strings.Split(opened.Text, "\n")
	if len(lines) != 4 || lines[0] != verifier.Name() {
		log.Fatalf("%s: not a checkpoint of %s", url, verifier.Name())
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	must(err)
	root, err := tlog.ParseHash(lines[2])
	must(err)
	return &ledger{url, tlog.Tree{N: size, Hash: root}, map[string]bool{}}
}

func (l *ledger) hashes() tlog.HashReader { return tlog.TileHashReader(l.tree, l) }

func (l *ledger) checkRoot() {
	root, err := tlog.TreeHash(l.tree.N, l.hashes())
	must(err)
	if root != l.tree.Hash {
		log.Fatalf("%s: the tiles have another root than the checkpoint", l.url)
	}
}

// checkEntries hashes every entry of every bundle, looks each up in the
// authenticated tiles, and proves a few of them.
func (l *ledger) checkEntries() {
	hashes := l.hashes()
	for start := int64(0); start < l.tree.N; start += 256 {
		width := min(256, l.tree.N-start)
		tile := tlog.Tile{H: 8, L: -1, N: start / 256, W: int(width)}
		data, err := get(l.url + "/tile/entries" + strings.TrimPrefix(tile.Path(), "tile/8/data"))
		must(err)
		var indexes []int64
		var leaves []tlog.Hash
		for len(data) > 0 {
			length := int(binary.BigEndian.Uint16(data))
			leaves = append(leaves, tlog.RecordHash(data[2:2+length]))
			indexes = append(indexes, tlog.StoredHashIndex(0, start+int64(len(indexes))))
			data = data[2+length:]
		}
		if int64(len(leaves)) != width {
			log.Fatalf("%s: a bundle has %d entries, not %d", l.url, len(leaves), width)
		}
		found, err := hashes.ReadHashes(indexes)
		must(err)
		for i, leaf := range leaves {
			if found[i] != leaf {
				log.Fatalf("%s: entry %d is not the one in the tree", l.url, start+int64(i))
			}
		}
		l.checkRecord(hashes, start, leaves[0])
		l.checkRecord(hashes, start+width-1, leaves[width-1])
	}
}

func (l *ledger) checkRecord(hashes tlog.HashReader, index int64, leaf tlog.Hash) {
	proof, err := tlog.ProveRecord(l.tree.N, index, hashes)
	must(err)
	must(tlog.CheckRecord(proof, l.tree.N, l.tree.Hash, index, leaf))
}

func (l *ledger) checkExtends(older *ledger) {
	proof, err := tlog.ProveTree(l.tree.N, older.tree.N, l.hashes())
	must(err)
	must(tlog.CheckTree(proof, l.tree.N, l.tree.Hash, older.tree.N, older.tree.Hash))
}

func min(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
