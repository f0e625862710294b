// Package signed checks the signature of a release file (docs/design/upgrade.md). It reads the file and the signature
// beside it, and writes nothing.
//
//	root key (in the binary) ── certifies ──▶ signing key, generation n ── signs ──▶ file
//
// A device that has taken a release of generation n refuses lower ones, and so does each binary those below the one that
// is linked in: this retires lost keys.
package signed

import (
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Set when linking, from image/signed/roots: base64 public keys, separated by commas, and the lowest generation.
var rootKeys, minGeneration = "", ""

var (
	// ErrNoRoots is returned when the binary was built without root keys.
	ErrNoRoots = errors.New("signed: this rivulet was built without keys and can trust no file")
	// ErrNotOurs is in every error about a signature that is not good.
	ErrNotOurs = errors.New("signed: the signature is not good")
	// ErrNone is returned when there is no signature beside a file.
	ErrNone = errors.New("signed: there is no signature")
)

// Certificate is a signing key certified by a root key.
type Certificate struct {
	Key        []byte `json:"key"`
	Generation int    `json:"generation"`
	Root       []byte `json:"root"`      // public key of the root
	Signature  []byte `json:"signature"` // by the root, over all above
}

// Signature is the content of FILE.sig.
type Signature struct {
	Format      int         `json:"format"`
	Certificate Certificate `json:"certificate"`
	Signature   []byte      `json:"signature"` // by the certificate's key, over the file
}

// Format is the version of Signature.
const Format = 1

// Different prefixes of the signed content: a signature of one kind is never valid as the other.
const (
	certificateContext = "rivulet signing key v1\x00"
	fileContext        = "rivulet release file v1\x00"
)

// Trust is whose signatures are taken.
type Trust struct {
	Roots []ed25519.PublicKey
	// Oldest is the lowest generation of a signing key.
	Oldest int
}

// Linked returns whom this binary trusts; the error is ErrNoRoots if nobody.
func Linked() (Trust, error) {
	var t Trust
	for text := range strings.SplitSeq(rootKeys, ",") {
		if text == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) != ed25519.PublicKeySize {
			return Trust{}, fmt.Errorf("signed: %q, linked into this binary, is no key; build it anew with another ROOT_KEYS", text)
		}
		t.Roots = append(t.Roots, key)
	}
	if len(t.Roots) == 0 {
		return Trust{}, fmt.Errorf("%w; use a release of rivulet, or build with ROOT_KEYS (see: rivulet docs upgrade)", ErrNoRoots)
	}
	var err error
	if t.Oldest, err = strconv.Atoi(minGeneration); err != nil || t.Oldest < 1 {
		return Trust{}, fmt.Errorf("signed: %q, linked into this binary, is no generation of a key; build it anew with another MIN_GENERATION", minGeneration)
	}
	return t, nil
}

// AtLeast returns the trust of a device that has taken a release of this generation.
func (t Trust) AtLeast(generation int) Trust {
	t.Oldest = max(t.Oldest, generation)
	return t
}

// RootKeys and MinGeneration are as they were linked in, for `rivulet version`.
func RootKeys() string      { return rootKeys }
func MinGeneration() string { return minGeneration }

// Digest hashes a file; it is an io.Writer.
type Digest struct {
	hash hash.Hash
	n    int64
}

func NewDigest() *Digest { return &Digest{hash: sha512.New()} }

func (d *Digest) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return d.hash.Write(p)
}

func (d *Digest) message() []byte {
	return append(binary.BigEndian.AppendUint64([]byte(fileContext), uint64(d.n)), d.hash.Sum(nil)...)
}

func (c Certificate) message() []byte {
	out := binary.BigEndian.AppendUint64([]byte(certificateContext), uint64(c.Generation))
	return append(out, c.Key...)
}

// Parse reads the content of FILE.sig.
func Parse(r io.Reader) (Signature, error) {
	var s Signature
	raw, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if err != nil {
		return s, fmt.Errorf("signed: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("%w: it cannot be read: %w; copy the .sig file once more", ErrNotOurs, err)
	}
	if s.Format != Format {
		return s, fmt.Errorf("%w: its format is %d, this rivulet knows %d; upgrade to a release in between first", ErrNotOurs, s.Format, Format)
	}
	return s, nil
}

// Beside reads the signature beside a file: FILE.sig, or that of the unpacked content of FILE.zst.
func Beside(file string) (Signature, error) {
	for _, name := range []string{file + ".sig", strings.TrimSuffix(file, ".zst") + ".sig"} {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Signature{}, fmt.Errorf("signed: %w; copy it once more", err)
		}
		defer f.Close()
		s, err := Parse(f)
		if err != nil {
			return s, fmt.Errorf("%s: %w", name, err)
		}
		return s, nil
	}
	return Signature{}, fmt.Errorf("%w %s.sig; copy it along with the release", ErrNone, file)
}

// Vouched reports whether a trusted root key has certified the signing key, of whatever generation.
func (c Certificate) Vouched(trust Trust) bool {
	return len(c.Key) == ed25519.PublicKeySize && slices.ContainsFunc(trust.Roots, func(root ed25519.PublicKey) bool {
		return root.Equal(ed25519.PublicKey(c.Root)) && ed25519.Verify(root, c.message(), c.Signature)
	})
}

// Verify returns an error unless s is a signature of the content of d, by a key that is certified by a trusted root and
// whose generation is not too old.
func (s Signature) Verify(d *Digest, trust Trust) error {
	c := s.Certificate
	switch {
	case !c.Vouched(trust):
		return fmt.Errorf("%w: nobody whom this rivulet trusts vouches for its key; get the file from where rivulet is released", ErrNotOurs)
	case c.Generation < trust.Oldest:
		return fmt.Errorf("%w: its key is of generation %d and was retired, this device takes %d or newer; get a newer release", ErrNotOurs, c.Generation, trust.Oldest)
	case !ed25519.Verify(c.Key, d.message(), s.Signature):
		return fmt.Errorf("%w: the file is damaged or was changed; get it once more", ErrNotOurs)
	}
	return nil
}

// Certify certifies a signing key with a root key.
func Certify(root ed25519.PrivateKey, key ed25519.PublicKey, generation int) Certificate {
	c := Certificate{Key: key, Generation: generation, Root: root.Public().(ed25519.PublicKey)}
	c.Signature = ed25519.Sign(root, c.message())
	return c
}

// Sign signs the content of d.
func Sign(key ed25519.PrivateKey, c Certificate, d *Digest) Signature {
	return Signature{Format: Format, Certificate: c, Signature: ed25519.Sign(key, d.message())}
}
