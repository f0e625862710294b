package debian

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"
)

// snapshots is Debian's archive of all versions of all packages.
const snapshots = "https://snapshot.debian.org"

// largest bounds a package of the archive, in bytes.
const largest = 1 << 30

// archived downloads a package that the mirrors have replaced, by its name and version, to a file. The caller compares
// its hash. An archive that does not answer within 20 seconds is an error.
func (a *Apt) archived(d Deb, file string) error {
	var found struct {
		Result []struct{ Architecture, Hash string }
	}
	where := a.archive + "/mr/binary/" + url.QueryEscape(d.Name) + "/" + url.QueryEscape(d.Version) + "/binfiles"
	if err := get(where, func(r io.Reader) error { return json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&found) }); err != nil {
		return err
	}
	for _, f := range found.Result {
		if f.Architecture == d.Arch {
			return get(a.archive+"/file/"+url.PathEscape(f.Hash), func(r io.Reader) error {
				out, err := os.Create(file)
				if err != nil {
					return err
				}
				defer out.Close()
				_, err = io.Copy(out, io.LimitReader(r, largest))
				return err
			})
		}
	}
	return fmt.Errorf("%s has it for no %s", where, d.Arch)
}

func get(where string, do func(io.Reader) error) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout, transport.TLSHandshakeTimeout = 20*time.Second, 20*time.Second
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get(where)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", where, answer.Status)
	}
	if err := do(answer.Body); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}
