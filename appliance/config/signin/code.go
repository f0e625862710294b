// Package signin has the codes that sign in to the web console: made by `rivulet flash`, by `rivulet console login` and
// by the console itself. It reads randomness and writes nothing; a device stores hashes only.
package signin

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
)

// Code is 80 random bits, which no number of attempts over a network finds.
type Code [codeBytes]byte

const (
	codeBytes = 10
	digits    = codeBytes * 8 / 5
	// alphabet is Crockford's base32, without letters that look like digits (https://www.crockford.com/base32.html).
	alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
	// HashPrefix begins each hash, and names its algorithm.
	HashPrefix = "sha256:"
)

// New returns a random code.
func New() (c Code) {
	_, _ = rand.Read(c[:]) // it cannot fail
	return c
}

// String is the code in four groups of four digits.
func (c Code) String() string {
	var out strings.Builder
	buffer, bits := 0, 0
	for _, b := range c {
		for buffer, bits = buffer<<8|int(b), bits+8; bits >= 5; bits -= 5 {
			if n := out.Len() - out.Len()/5; n > 0 && n%4 == 0 {
				out.WriteByte('-')
			}
			out.WriteByte(alphabet[buffer>>(bits-5)&31])
		}
		buffer &= 1<<bits - 1
	}
	return out.String()
}

// like are letters that people write for digits.
var like = strings.NewReplacer("O", "0", "I", "1", "L", "1", "-", "", " ", "", "\t", "", "\n", "", "\r", "")

// Parse reads what String wrote, in upper or lower case, with any spaces and dashes, and with letters that look like
// its digits.
func Parse(text string) (c Code, err error) {
	wrong := errors.New("this is no sign-in code: it has 16 letters and digits; make one with: sudo rivulet console login")
	if len(text) > 256 {
		return c, wrong
	}
	text = like.Replace(strings.ToUpper(text))
	if len(text) != digits {
		return c, wrong
	}
	buffer, bits, n := 0, 0, 0
	for i := range len(text) {
		v := strings.IndexByte(alphabet, text[i])
		if v < 0 {
			return Code{}, wrong
		}
		if buffer, bits = buffer<<5|v, bits+5; bits >= 8 {
			bits -= 8
			c[n] = byte(buffer >> bits)
			n++
		}
		buffer &= 1<<bits - 1
	}
	return c, nil
}

// Hash is the form in which a device stores the code.
func (c Code) Hash() string {
	sum := sha256.Sum256(c[:])
	return HashPrefix + hex.EncodeToString(sum[:])
}

// CheckHash returns an error unless the text is a Hash.
func CheckHash(text string) error {
	raw, err := hex.DecodeString(strings.TrimPrefix(text, HashPrefix))
	if !strings.HasPrefix(text, HashPrefix) || err != nil || len(raw) != sha256.Size || text != strings.ToLower(text) {
		return errors.New("it is no hash of a sign-in code, " + HashPrefix + " and 64 hexadecimal digits; rivulet flash writes it")
	}
	return nil
}
