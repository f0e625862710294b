package flash

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/signed"
)

const (
	// maxImage bounds the unpacked size of an image.
	maxImage = 64 << 30
	// chunk is the unit of reading, writing and comparing.
	chunk = 4 << 20
	// sector is the unit of disks.
	sector = 512
)

// Image is a checked image: signature, hash and map match its content.
type Image struct {
	Path   string
	Size   int64 // unpacked
	Signed bool
	Ranges []Range // with content; all of it without a map
	Reach  int64   // how far its partition table counts, bytes; an MBR counts to 2^32 sectors
	hash   []byte  // of the checked content; what is written is compared with it
}

// Content is how many bytes of it are written.
func (m *Image) Content() (n int64) {
	for _, r := range m.Ranges {
		n += r.To - r.From
	}
	return n
}

// Trust selects the images that are accepted.
type Trust struct {
	signed.Trust
	Unsigned bool // accept one without a signature; a bad signature is always refused
}

// Open checks an image completely, before any disk is changed.
func Open(ctx context.Context, path string, trust Trust, p Progress) (*Image, error) {
	fi, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, image("%w; name the file of an image", err)
	case !fi.Mode().IsRegular():
		return nil, image("%s is not a file; the image comes first, then the disk: rivulet flash IMAGE DEVICE", path)
	}
	m := &Image{Path: path}
	sig, err := signed.Beside(path)
	switch {
	case errors.Is(err, signed.ErrNone) && trust.Unsigned:
	case errors.Is(err, signed.ErrNone):
		return nil, image("%w, or take it as it is with --unsigned", err)
	case err != nil:
		return nil, image("%w", err)
	default:
		m.Signed = true
		if len(trust.Roots) == 0 {
			return nil, image("%w; use a release of rivulet, or build with ROOT_KEYS (see: rivulet docs upgrade)", signed.ErrNoRoots)
		}
	}
	ranges, mapped, err := readBmap(path)
	if err != nil {
		return nil, err
	}
	c := &checker{sum: sha256.New(), signed: signed.NewDigest(), ranges: ranges}
	if err := m.read(ctx, fi.Size(), Checking, p, c); err != nil {
		return nil, err
	}
	m.Size, m.hash, m.Ranges, m.Reach = c.at, c.sum.Sum(nil), ranges, math.MaxInt64
	if len(c.first) == 2*sector && string(c.first[sector-2:sector]) == "\x55\xaa" && string(c.first[sector:sector+8]) != "EFI PART" {
		m.Reach = sector << 32
	}
	if m.Signed {
		if err := sig.Verify(c.signed, trust.Trust); err != nil {
			return nil, image("%w", err)
		}
	}
	switch {
	case m.Size == 0 || m.Size%sector != 0:
		return nil, image("it has %d bytes, which is no disk's size; it is cut short or no image, get it once more", m.Size)
	case ranges != nil && mapped != m.Size:
		return nil, image("%s.bmap is of an image of %d bytes, this one has %d; get both once more", path, mapped, m.Size)
	case ranges == nil:
		m.Ranges = []Range{{To: m.Size}}
	}
	return m, c.finish(path)
}

// read writes the whole unpacked image to w.
func (m *Image) read(ctx context.Context, size int64, s Stage, p Progress, w io.Writer) error {
	f, err := os.Open(m.Path)
	if err != nil {
		return image("%w; name the file of an image", err)
	}
	defer f.Close()
	count := &counter{r: f}
	in := bufio.NewReaderSize(count, 1<<20)
	var content io.Reader = in
	switch magic, _ := in.Peek(4); {
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return image("%w", err)
		}
		defer z.Close()
		content = z
	case strings.HasSuffix(m.Path, ".zst"):
		return image("%s is not compressed with zstd, though its name says so; get it once more", m.Path)
	}
	buf := make([]byte, chunk)
	end := &ender{r: content}
	for total := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(end, buf)
		if total += int64(n); total > maxImage {
			return image("it is larger than any image; get it once more")
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		p(s, count.n, size)
		switch {
		case err != nil && errors.Is(end.err, io.EOF):
			return nil
		case err != nil:
			return image("it cannot be unpacked: %w; it is cut short or damaged, get it once more", err)
		}
	}
}

// counter counts the bytes read from the file, the unit of progress.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// ender distinguishes the end of an image from that of a truncated stream.
type ender struct {
	r   io.Reader
	err error
}

func (e *ender) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.err = err
	return n, err
}

// readBmap reads the map beside an image; nil without one.
func readBmap(path string) ([]Range, int64, error) {
	for _, name := range []string{path + ".bmap", strings.TrimSuffix(path, ".zst") + ".bmap"} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, 0, image("%w", err)
		}
		defer f.Close()
		ranges, size, err := parseBmap(f)
		if err != nil {
			return nil, 0, image("%s: %w; get it once more, or remove it: it only saves time", name, err)
		}
		return ranges, size, nil
	}
	return nil, 0, nil
}

// checker reads an image once. A map is not signed, so the image has to confirm it: what the map leaves out has to be
// zeros.
type checker struct {
	sum    hash.Hash
	signed *signed.Digest
	ranges []Range
	part   hash.Hash // of the current range
	next   int       // the current range
	at     int64
	first  []byte // two sectors, with the partition table
	wrong  error
}

func (c *checker) Write(p []byte) (int, error) {
	c.sum.Write(p)
	_, _ = c.signed.Write(p)
	c.first = append(c.first, p[:min(len(p), 2*sector-len(c.first))]...)
	if c.ranges == nil {
		c.at += int64(len(p))
		return len(p), nil
	}
	for rest := p; len(rest) > 0; {
		rest = rest[c.step(rest):]
	}
	return len(p), nil
}

// step consumes bytes up to the next border of a range, and returns how many.
func (c *checker) step(p []byte) int {
	if c.next == len(c.ranges) || c.at < c.ranges[c.next].From {
		n := int64(len(p))
		if c.next < len(c.ranges) {
			n = min(n, c.ranges[c.next].From-c.at)
		}
		if !zeros(p[:n]) {
			c.fail("it leaves out content near byte %d", c.at)
		}
		c.at += n
		return int(n)
	}
	r := c.ranges[c.next]
	if c.part == nil {
		c.part = sha256.New()
	}
	n := min(int64(len(p)), r.To-c.at)
	c.part.Write(p[:n])
	if c.at += n; c.at == r.To {
		if len(r.SHA256) > 0 && !bytes.Equal(r.SHA256, c.part.Sum(nil)) {
			c.fail("the content at byte %d has another checksum", r.From)
		}
		c.part, c.next = nil, c.next+1
	}
	return int(n)
}

func (c *checker) fail(format string, args ...any) {
	if c.wrong == nil {
		c.wrong = fmt.Errorf(format, args...)
	}
}

func (c *checker) finish(path string) error {
	if c.wrong != nil {
		return image("%s.bmap does not belong to it: %w; get both once more", path, c.wrong)
	}
	return nil
}

func zeros(p []byte) bool {
	return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1])
}
