// Command sign makes the keys and signatures of releases (docs/design/keys.md). It is never shipped and never runs
// on a device: the releaser keeps the keys. Files of private keys are sealed with a passphrase (age). It is asked for on
// the terminal, or is the first line of the file that RIVULET_PASSPHRASE_FILE names.
package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"

	"rivulet/image/signed"
)

const usage = `usage:
  sign key FILE                                    make a key (root or signing); prints its public half
  sign certify -root FILE -key PUBLIC -generation N    a root key vouches for a signing key; prints the certificate
  sign file -key FILE -certificate FILE RELEASE... writes RELEASE.sig; of NAME.zst NAME.sig, over what it unpacks to
  sign fits -key FILE -certificate FILE            whether the key opens, and the certificate is its own
  sign check RELEASE...                            whether the binaries of this tree would take it
  sign roots                                       writes the root keys of this tree into SECURITY.md`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sign:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	root := flags.String("root", "", "file of the root key")
	key := flags.String("key", "", "certify: the public key; file: the file of the signing key")
	certificate := flags.String("certificate", "", "file of the signing key's certificate")
	generation := flags.Int("generation", 0, "of the signing key; higher ones retire lower ones")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch {
	case args[0] == "key" && flags.NArg() == 1:
		return makeKey(flags.Arg(0), out)
	case args[0] == "certify" && *root != "" && *key != "" && *generation > 0:
		return certify(*root, *key, *generation, out)
	case args[0] == "file" && *key != "" && *certificate != "" && flags.NArg() > 0:
		return sign(*key, *certificate, flags.Args())
	case args[0] == "fits" && *key != "" && *certificate != "" && flags.NArg() == 0:
		_, _, err := readPair(*key, *certificate)
		return err
	case args[0] == "check" && flags.NArg() > 0:
		return check(flags.Args(), out)
	case args[0] == "roots" && flags.NArg() == 0:
		return writeRoots(securityPage)
	}
	return errors.New(usage)
}

func makeKey(file string, out io.Writer) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	passphrase, err := readPassphrase("Passphrase for "+file+": ", true)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%w; name a file that is not there", err)
	}
	if err := errors.Join(seal(f, private.Seed(), passphrase), f.Sync(), f.Close()); err != nil {
		return err
	}
	fmt.Fprintln(out, base64.StdEncoding.EncodeToString(public))
	return nil
}

// check verifies files as the binaries of this tree do.
func check(files []string, out io.Writer) error {
	published, err := signed.ReadRoots(signed.RootsFile)
	if err != nil {
		return err
	}
	for _, file := range files {
		s, err := signed.Beside(file)
		if err != nil {
			return err
		}
		d, err := digest(file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := s.Verify(d, published.Trust()); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		fmt.Fprintf(out, "%s: good\n", file)
	}
	return nil
}

func certify(root, key string, generation int, out io.Writer) error {
	private, err := readKey(root)
	if err != nil {
		return err
	}
	public, err := base64.StdEncoding.DecodeString(key)
	if err != nil || len(public) != ed25519.PublicKeySize {
		return fmt.Errorf("%q is no public key: take what `sign key` printed", key)
	}
	return json.NewEncoder(out).Encode(signed.Certify(private, public, generation))
}

// readPair opens a signing key and reads its certificate.
func readPair(key, certificate string) (private ed25519.PrivateKey, c signed.Certificate, err error) {
	if private, err = readKey(key); err != nil {
		return nil, c, err
	}
	raw, err := os.ReadFile(certificate)
	if err != nil {
		return nil, c, err
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, c, fmt.Errorf("%s: %w", certificate, err)
	}
	if !private.Public().(ed25519.PublicKey).Equal(ed25519.PublicKey(c.Key)) {
		return nil, c, fmt.Errorf("%s is the certificate of another key than %s; name the one that was made with it", certificate, key)
	}
	return private, c, nil
}

func sign(key, certificate string, files []string) error {
	private, c, err := readPair(key, certificate)
	if err != nil {
		return err
	}
	for _, file := range files {
		d, err := digest(file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		text, err := json.Marshal(signed.Sign(private, c, d))
		if err != nil {
			return err
		}
		if err := os.WriteFile(strings.TrimSuffix(file, ".zst")+".sig", append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// digest is over a file, or over the unpacked content of a .zst: one signature serves both.
func digest(file string) (*signed.Digest, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	content := io.Reader(in)
	if strings.HasSuffix(file, ".zst") {
		z, err := zstd.NewReader(in)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		content = z
	}
	d := signed.NewDigest()
	_, err = io.Copy(d, content)
	return d, err
}
