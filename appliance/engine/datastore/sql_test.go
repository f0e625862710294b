package datastore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"rivulet/appliance/config/sqlserver"
	"rivulet/appliance/health"
	"rivulet/appliance/state/paths"
	"rivulet/test/harness/sqltest"
)

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
			address := sqltest.Start(t, name)
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
			run("DROP TABLE IF EXISTS kine, rivulet_cluster, rivulet_gateway")
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
