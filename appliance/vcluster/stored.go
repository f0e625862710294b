package vcluster

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// stored returns the used size of the datastore, bytes; 0 if there is none yet. The number of free pages is that of the
// file, which the write-ahead log has not reached. The tenant controls both files, which may be links or pipes: the value
// is only shown.
func (c *cluster) stored() int64 {
	from, err := os.OpenRoot(c.dataDir())
	if err != nil {
		return 0
	}
	defer from.Close()
	f, _ := regular(from, dataMembers[0])
	if f == nil {
		return 0
	}
	defer f.Close()
	var head [40]byte // https://sqlite.org/fileformat2.html, 1.3
	if _, err := io.ReadFull(f, head[:]); err != nil || !strings.HasPrefix(string(head[:]), "SQLite format 3\x00") {
		return 0
	}
	page := int64(binary.BigEndian.Uint16(head[16:])) // 1 means 64 KiB, which this datastore does not use
	pages := int64(binary.BigEndian.Uint32(head[28:]))
	if wal, size := regular(from, dataMembers[1]); wal != nil {
		defer wal.Close()
		pages = max(pages, pagesByLog(wal, size, page))
	}
	return page * max(pages-int64(binary.BigEndian.Uint32(head[36:])), 0)
}

// regular opens a file that is neither a link nor a pipe, nil if it is none.
func regular(from *os.Root, name string) (f *os.File, size int64) {
	f, err := from.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0
	}
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		return f, st.Size()
	}
	f.Close()
	return nil, 0
}

// pagesByLog returns the size of the database by the last transaction in its write-ahead log, pages; 0 without one
// (https://sqlite.org/fileformat2.html, 4). Frames of an earlier round of the log have another salt.
func pagesByLog(log io.ReaderAt, size, page int64) int64 {
	const header, longest = 24, 1 << 16 // of a frame; frames of a transaction
	var head [32]byte
	if _, err := log.ReadAt(head[:], 0); err != nil {
		return 0
	}
	frame := func(i int) (pages int64, ours bool) {
		var b [header]byte
		_, err := log.ReadAt(b[:], int64(len(head))+int64(i)*(header+page))
		return int64(binary.BigEndian.Uint32(b[4:])), err == nil && bytes.Equal(b[8:16], head[16:24])
	}
	end := sort.Search(int((size-int64(len(head)))/(header+page)), func(i int) bool { _, ours := frame(i); return !ours })
	for i := end - 1; i >= max(0, end-longest); i-- {
		if pages, _ := frame(i); pages > 0 {
			return pages
		}
	}
	return 0
}
