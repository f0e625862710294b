package vcluster

import (
	"encoding/binary"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// stored returns the used size of the datastore by its file header, bytes; 0 if there is none yet. The header lags
// behind the write-ahead log, a few MiB. The tenant controls the file, which may be a link or a pipe: the value is only
// shown.
func (c *cluster) stored() int64 {
	from, err := os.OpenRoot(c.dataDir())
	if err != nil {
		return 0
	}
	defer from.Close()
	f, err := from.OpenFile(dataMembers[0], os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return 0
	}
	var head [40]byte // https://sqlite.org/fileformat2.html, 1.3
	if _, err := io.ReadFull(f, head[:]); err != nil || !strings.HasPrefix(string(head[:]), "SQLite format 3\x00") {
		return 0
	}
	page := int64(binary.BigEndian.Uint16(head[16:])) // 1 means 64 KiB, which this datastore does not use
	return page * max(int64(binary.BigEndian.Uint32(head[28:]))-int64(binary.BigEndian.Uint32(head[36:])), 0)
}
