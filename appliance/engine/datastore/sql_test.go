package datastore

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/config/sqlserver"
	"rivulet/appliance/health"
	"rivulet/appliance/state/paths"
	"rivulet/test/harness/await"
)

// servers start Debian's servers as user nobody, with a database lab of user rivulet: $1 is the port, the working
// folder is empty.
var servers = map[string]struct{ program, script, address string }{
	"PostgreSQL": {"/usr/lib/postgresql/15/bin/initdb", `PATH=/usr/lib/postgresql/15/bin:$PATH
		initdb -D pg -U rivulet -A trust >/dev/null
		echo "CREATE DATABASE lab" | postgres --single -D pg postgres >/dev/null
		exec postgres -D pg -k "$PWD" -h 127.0.0.1 -p "$1"`, "postgres://rivulet@127.0.0.1:%d/lab"},
	"MariaDB": {"/usr/sbin/mariadbd", `mariadb-install-db --no-defaults --datadir="$PWD/my" --auth-root-authentication-method=normal --skip-test-db >/dev/null
		printf '%s\n' "CREATE DATABASE lab;" "CREATE USER rivulet;" "GRANT ALL ON lab.* TO rivulet;" > init.sql
		exec /usr/sbin/mariadbd --no-defaults --datadir="$PWD/my" --socket="$PWD/s" --bind-address=127.0.0.1 --port="$1" --init-file="$PWD/init.sql"`, "mysql://rivulet@tcp(127.0.0.1:%d)/lab"},
}

// begin starts one and returns the address of its database.
func begin(t *testing.T, name string) string {
	t.Helper()
	s := servers[name]
	if _, err := os.Stat(s.program); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs root and %s: test/deps databases", s.program)
	}
	dir, err := os.MkdirTemp("/tmp", "sql-") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", s.script, "sh", fmt.Sprint(port))
	var out strings.Builder
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, &out, &out, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	address := fmt.Sprintf(s.address, port)
	await.NoError(t, t.Context(), time.Minute, name+" answers", func() error {
		return open(t, address).answers(t.Context())
	})
	return address
}

func open(t *testing.T, address string) *database {
	t.Helper()
	at, err := sqlserver.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := at.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	return &database{at, pool}
}

// cluster is an engine that does not run, with a database.
type cluster string

func (cluster) Settled() bool          { return false }
func (cluster) BeginAnew(string) error { return nil }
func (c cluster) Datastore() string    { return string(c) }

// kines is kine's table, as far as both servers take it.
const kines = "CREATE TABLE kine (id %s PRIMARY KEY, name VARCHAR(630), created INTEGER, deleted INTEGER, create_revision BIGINT, prev_revision BIGINT, lease INTEGER, value %s, old_value %[2]s)"

func TestSQL(t *testing.T) {
	for name, types := range map[string][]any{"PostgreSQL": {"BIGSERIAL", "BYTEA"}, "MariaDB": {"BIGINT AUTO_INCREMENT", "MEDIUMBLOB"}} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			address := begin(t, name)
			db := open(t, address)
			guard := func() *Guard { return &Guard{State: t.TempDir(), Health: &health.Tracker{}} }
			refused := func(g *Guard, address, want string) {
				t.Helper()
				err := g.Prepare(ctx, cluster(address))
				if err == nil || !strings.Contains(err.Error(), want) || len(g.Health.Problems()) != 1 || g.db.Load() != nil {
					t.Errorf("%v, %v, in use %v, want %q", err, g.Health.Problems(), g.db.Load(), want)
				}
			}
			run := func(statement string) {
				t.Helper()
				if _, err := db.ExecContext(ctx, statement); err != nil {
					t.Fatal(err)
				}
			}

			inFile := guard()
			if err := os.MkdirAll(filepath.Dir(Path(inFile.State)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(Path(inFile.State), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(inFile, address, "are in a file of this device")

			// Of many that begin at the same time one gets the database.
			all := make([]*Guard, 10)
			errs := make([]error, len(all))
			var group sync.WaitGroup
			for i := range all {
				all[i] = guard()
				group.Go(func() { errs[i] = all[i].Prepare(ctx, cluster(address)) })
			}
			group.Wait()
			var g *Guard
			for i, err := range errs {
				switch {
				case err == nil && g != nil:
					t.Error("two clusters have one database")
				case err == nil:
					g = all[i]
				}
			}
			if g == nil {
				t.Fatalf("nobody has the database: %v", errs)
			}
			for i, other := range all {
				if other != g {
					refused(other, address, "has the objects of another cluster")
					if errs[i] == nil {
						t.Error("an error has gone")
					}
				}
			}
			if err := g.Prepare(ctx, cluster(address)); err != nil || len(g.Health.Problems()) > 0 {
				t.Errorf("again: %v, %v", err, g.Health.Problems())
			}
			if first, err := g.New(ctx); err != nil || !first {
				t.Errorf("before the first object: new %v, %v", first, err)
			}
			if n, err := g.Delete(ctx, "/", nil); n != 0 || err != nil {
				t.Errorf("without a table %d were deleted, %v", n, err)
			}

			run(fmt.Sprintf(kines, types...))
			for _, key := range []string{"/registry/leases/a", "/registry/leases/b", "/registry/leasesx", "/bootstrap/x"} {
				run("INSERT INTO kine (name, created, deleted, create_revision, prev_revision, lease, value) VALUES ('" + key + "', 1, 0, 0, 0, 0, 'v')")
			}
			if first, err := g.New(ctx); err != nil || first {
				t.Errorf("with a copy of the authorities: new %v, %v", first, err)
			}
			n, err := g.Delete(ctx, "/registry/leases/", func(key string, value []byte) bool { return strings.HasSuffix(key, "b") && string(value) == "v" })
			if n != 1 || err != nil {
				t.Errorf("%d were deleted, %v", n, err)
			}
			if n, err := g.Delete(ctx, "/registry/leases/", nil); n != 1 || err != nil {
				t.Errorf("%d were left, %v", n, err)
			}
			refused(guard(), address, "has the objects of another cluster")

			refused(g, "", "datastore is not in the configuration; put it back")
			if err := g.Prepare(ctx, cluster(address)); err != nil {
				t.Error(err)
			}
			run("DROP TABLE IF EXISTS kine")
			if err := g.Prepare(ctx, cluster(address)); err != nil {
				t.Errorf("before the engine has served: %v", err)
			}
			token := paths.Server(g.State, "token")
			if err := os.MkdirAll(filepath.Dir(token), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(token, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			refused(g, address, "restore the database from its own backup")
			run("DROP TABLE IF EXISTS kine, rivulet_cluster")
			refused(g, address, "restore the database from its own backup")
			refused(g, strings.Replace(address, "/lab", "/missing", 1), "missing")
			if raw, err := os.ReadFile(paths.SQLCluster(g.State)); err != nil || !strings.Contains(string(raw), `"token":"`) {
				t.Errorf("%s %v", raw, err)
			}
		})
	}
}

// A server that does not answer is an error within a bound, and names its address.
func TestNoSQLServer(t *testing.T) {
	g := &Guard{State: t.TempDir(), Health: &health.Tracker{}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := g.Prepare(ctx, cluster("postgres://rivulet:CANARY@127.0.0.1:1/lab"))
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1, database lab: connection refused; start the SQL server at 127.0.0.1:1") || strings.Contains(err.Error(), "CANARY") {
		t.Error(err)
	}
	if _, err := os.Stat(paths.SQLCluster(g.State)); err == nil {
		t.Error("a cluster without a database is remembered")
	}
}
