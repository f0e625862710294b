package api

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"rivulet/fabric/httpserver"
)

// ReaderGroup is the group whose members may read without being root. Without such a group there is no socket for
// readers.
const ReaderGroup = "rivulet"

// ReaderSocket is the path of the socket that members of ReaderGroup may open.
func ReaderSocket(runDir string) string { return filepath.Join(runDir, "readers.sock") }

// readable are the only requests that readers may send: the state of the device and its peers. No configuration, no
// invites, no kubeconfig, no store, no changes.
var readable = map[string]bool{"/v1/alive": true, "/v1/facts": true, "/v1/health": true, "/v1/metrics": true, "/v1/status": true, "/v1/burst": true, "/v1/fleet": true, "/v1/vclusters": true}

var errReader = errors.New("members of group " + ReaderGroup + " may read status, peers, tenants and metrics; for this use sudo")

// toReaders serves readers until ctx ends; it returns at once without a ReaderGroup.
func toReaders(ctx context.Context, runDir string, routes http.Handler) error {
	group, err := user.LookupGroup(ReaderGroup)
	if err != nil {
		return nil //nolint:nilerr // not wanted
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		return nil //nolint:nilerr // the system has no such group
	}
	return serveReaders(ctx, runDir, gid, routes, func() {})
}

func serveReaders(ctx context.Context, runDir string, gid int, routes http.Handler, ready func()) error {
	l, err := listen(ReaderSocket(runDir), gid, 0o660)
	if err != nil {
		return err
	}
	defer os.Remove(ReaderSocket(runDir))
	return serve(ctx, httpserver.Readers, l, readOnly(routes), ready)
}

// readOnly passes readable requests on, without a body, and refuses all others.
func readOnly(routes http.Handler) http.Handler {
	refuse := JSON(func(*http.Request) (any, error) { return nil, errReader })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !readable[r.URL.Path] || r.URL.RawQuery != "" {
			refuse.ServeHTTP(w, r)
			return
		}
		r.Body = http.NoBody
		routes.ServeHTTP(w, r)
	})
}
