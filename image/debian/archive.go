package debian

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"
)

// snapshots is Debian's archive of all versions of all packages.
const snapshots = "https://snapshot.debian.org"

// largest bounds a file of the archive, in bytes.
const largest = 2 << 30

// attempts is how often a request is made that fails for a reason that passes.
const attempts = 3

// archive downloads what the mirrors have replaced from the archive of all versions, which knows its files by SHA-1; the
// caller compares their SHA-256. It is used by one goroutine.
type archive struct {
	address string
	pause   time.Duration // before the second attempt; twice as long before each further one
	lists   map[string]listed
	gone    error // why the archive cannot be reached: it is not asked again
}

// listed is a package of the archive: its files.
type listed struct {
	Result   []struct{ Architecture, Hash string }
	FileInfo map[string][]struct {
		Name string
		Size int64
	}
}

// deb downloads a binary package to a file.
func (a *archive) deb(d Deb, file string) error {
	where := a.address + "/mr/binary/" + url.QueryEscape(d.Name) + "/" + url.QueryEscape(d.Version) + "/binfiles?fileinfo=1"
	l, err := a.list(where)
	if err != nil {
		return err
	}
	for _, f := range l.Result {
		if info := l.FileInfo[f.Hash]; f.Architecture == d.Arch && len(info) > 0 {
			return a.file(f.Hash, info[0].Size, file)
		}
	}
	return fmt.Errorf("%s has it for no %s", where, d.Arch)
}

// source downloads a file of a source package to a file.
func (a *archive) source(f SourceFile, file string) error {
	where := a.address + "/mr/package/" + url.QueryEscape(f.Of.Name) + "/" + url.QueryEscape(f.Of.Version) + "/srcfiles?fileinfo=1"
	l, err := a.list(where)
	if err != nil {
		return err
	}
	for hash, info := range l.FileInfo {
		for _, one := range info {
			if one.Name == f.Name {
				return a.file(hash, one.Size, file)
			}
		}
	}
	return fmt.Errorf("%s does not list it", where)
}

// list returns the files of a package; the source package of several files is asked for once.
func (a *archive) list(where string) (l listed, err error) {
	if l, ok := a.lists[where]; ok {
		return l, nil
	}
	err = a.get(where, func(r io.Reader) error { l = listed{}; return json.NewDecoder(io.LimitReader(r, 1<<20)).Decode(&l) })
	if err == nil {
		if a.lists == nil {
			a.lists = map[string]listed{}
		}
		a.lists[where] = l
	}
	return l, err
}

// file downloads a file of the size that its list names.
func (a *archive) file(hash string, size int64, file string) error {
	if size > largest {
		return fmt.Errorf("the archive says that it has %d bytes; no package has", size)
	}
	return a.get(a.address+"/file/"+url.PathEscape(hash), func(r io.Reader) error {
		out, err := os.Create(file)
		if err != nil {
			return err
		}
		n, err := io.Copy(out, io.LimitReader(r, size+1))
		if err = errors.Join(err, out.Close()); err == nil && n != size {
			err = fmt.Errorf("it has not the %d bytes that are listed", size)
		}
		return err
	})
}

// passing are the answers that are asked for again.
var passing = []int{http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}

// get asks for an address until it is answered, a few times, and reads the answer.
func (a *archive) get(where string, read func(io.Reader) error) (err error) {
	if a.gone != nil {
		return a.gone
	}
	answered := false
	for i := range attempts {
		if i > 0 {
			time.Sleep(a.pause << (i - 1))
		}
		status, got := get(where, read)
		answered = answered || status != 0
		if err = got; err == nil || status != 0 && status != http.StatusOK && !slices.Contains(passing, status) {
			return err
		}
	}
	if !answered {
		a.gone = err
	}
	return err
}

// get returns the answer's status as well, 0 without an answer. Twenty seconds without one are an error.
func get(where string, read func(io.Reader) error) (status int, err error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout, transport.TLSHandshakeTimeout = 20*time.Second, 20*time.Second
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get(where)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return answer.StatusCode, fmt.Errorf("%s: %s", where, answer.Status)
	}
	if err := read(answer.Body); err != nil {
		return answer.StatusCode, fmt.Errorf("%s: %w", where, err)
	}
	return answer.StatusCode, nil
}
