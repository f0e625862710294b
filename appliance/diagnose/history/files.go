package history

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"rivulet/appliance/state/durable"
)

const (
	// kept are the minutes that are kept.
	kept = 24 * 60
	// perFile are the minutes of a file: it is removed as a whole once all of it is older than kept.
	perFile = 2 * 60
	// budget bounds the bytes of all files. What was written within a day is still there, so it bounds a day's writes as
	// well.
	budget = 4 << 20
	// block is what a file system writes at least; a chunk counts as whole ones.
	block = 4 << 10
	// overhead is what a file system writes for an append beside it: the file's length, the journal.
	overhead = 2 * block
)

// files are those of a folder. A file is named by the minute of its first chunk and a number that grows with each, and a
// process appends only to files that it has made, so that nothing is behind a torn end.
type files struct {
	dir  string
	all  []file
	last int // index of the file to append to; -1 is none
}

type file struct {
	name          string
	number        int   // the greatest was made last
	first, newest int64 // minutes
	cost          int64 // bytes that its writes cost
	size          int64
}

// open lists the files. Without a folder there are none.
func open(dir string) (*files, error) {
	f := &files{dir: dir, last: -1}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, durable.Cure(fmt.Errorf("history: %w", err))
	}
	for _, e := range entries {
		first, number, _ := strings.Cut(e.Name(), "-")
		minute, err := strconv.ParseInt(first, 10, 64)
		n, err2 := strconv.Atoi(number)
		info, err3 := e.Info()
		if errors.Join(err, err2, err3) != nil || !info.Mode().IsRegular() {
			continue
		}
		one := file{name: e.Name(), number: n, first: minute, newest: minute, size: info.Size()}
		_ = f.read(one, func(c chunk, size int) {
			one.newest = max(one.newest, c.minute+int64(len(c.rows))-1)
			one.cost += cost(size)
		})
		one.cost = max(one.cost, cost(int(one.size)))
		f.all = append(f.all, one)
	}
	// Where the clock was set back, a file with later minutes is the older one.
	slices.SortStableFunc(f.all, func(a, b file) int { return a.number - b.number })
	return f, nil
}

func cost(bytes int) int64 {
	return int64((bytes+block-1)/block*block + overhead)
}

// read calls visit for each sound chunk of a file; it ends at the first one that is torn.
func (f *files) read(one file, visit func(c chunk, size int)) error {
	b, err := os.ReadFile(filepath.Join(f.dir, one.name))
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	for {
		c, rest, err := decode(b)
		if err != nil { // the end, or a power cut
			return nil //nolint:nilerr // what is before it is sound
		}
		visit(c, len(b)-len(rest))
		b = rest
	}
}

// expire removes files of which all is further from now than kept, in either direction: a clock that was wrong leaves
// nothing behind.
func (f *files) expire(now int64) error {
	for i := len(f.all) - 1; i >= 0; i-- {
		one := f.all[i]
		if now-one.newest < kept && one.first-now < kept {
			continue
		}
		if err := os.Remove(filepath.Join(f.dir, one.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return durable.Cure(fmt.Errorf("history: %w", err))
		}
		f.all = slices.Delete(f.all, i, i+1)
		switch {
		case f.last == i:
			f.last = -1
		case f.last > i:
			f.last--
		}
	}
	return nil
}

// errFull: the budget of the day is used up; the chunk stays in memory.
var errFull = errors.New("history: a day's budget of writes is used up")

// append writes a chunk. After a nil error it survives a power cut.
func (f *files) append(c *chunk) error {
	b, err := c.encode()
	if err != nil {
		return err
	}
	used := cost(len(b))
	for _, one := range f.all {
		used += one.cost
	}
	if used > budget {
		return errFull
	}
	if f.last >= 0 && (c.minute-f.all[f.last].first >= perFile || c.minute < f.all[f.last].newest) {
		f.last = -1
	}
	made := f.last < 0
	if made {
		if err := f.make(c.minute); err != nil {
			return err
		}
	}
	one := &f.all[f.last]
	one.cost += cost(len(b)) // also if it fails half-way
	if err := f.write(one, b, made); err != nil {
		f.last = -1 // nothing is written behind a torn end
		return durable.Cure(fmt.Errorf("history: %w", err))
	}
	one.size += int64(len(b))
	one.newest = max(one.newest, c.minute+int64(len(c.rows))-1)
	return nil
}

// make adds a file, with the greatest number.
func (f *files) make(minute int64) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return durable.Cure(fmt.Errorf("history: %w", err))
	}
	n := 0
	if len(f.all) > 0 {
		n = f.all[len(f.all)-1].number + 1
	}
	f.all = append(f.all, file{name: fmt.Sprintf("%d-%d", minute, n), number: n, first: minute, newest: minute})
	f.last = len(f.all) - 1
	return nil
}

func (f *files) write(one *file, b []byte, made bool) error {
	to, err := os.OpenFile(filepath.Join(f.dir, one.name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = to.Write(b)
	err = errors.Join(err, to.Sync(), to.Close())
	if err == nil && made {
		err = durable.SyncDir(f.dir)
	}
	return err
}
