// Package sqltest starts the SQL servers of Debian for a test: PostgreSQL and MariaDB, as user nobody, each with a
// database lab of user rivulet, who has no password. A server ends with its test.
package sqltest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"rivulet/appliance/config/sqlserver"
	"rivulet/test/harness/await"
)

// Servers are the names that Start takes.
var Servers = []string{"PostgreSQL", "MariaDB"}

// servers: $1 is the port, the working folder is empty.
var servers = map[string]struct{ program, script, address string }{
	"PostgreSQL": {"/usr/lib/postgresql/15/bin/initdb", `PATH=/usr/lib/postgresql/15/bin:$PATH
		initdb -D pg -U rivulet -A trust >/dev/null
		echo "CREATE DATABASE lab" | postgres --single -D pg postgres >/dev/null
		exec postgres -D pg -k "$PWD" -h 127.0.0.1 -p "$1"`, "postgres://rivulet@127.0.0.1:%d/lab"},
	"MariaDB": {"/usr/sbin/mariadbd", `mariadb-install-db --no-defaults --datadir="$PWD/my" --auth-root-authentication-method=normal --skip-test-db >/dev/null
		printf '%s\n' "CREATE DATABASE lab;" "CREATE USER rivulet;" "GRANT ALL ON lab.* TO rivulet;" > init.sql
		exec /usr/sbin/mariadbd --no-defaults --datadir="$PWD/my" --socket="$PWD/s" --bind-address=127.0.0.1 --port="$1" --init-file="$PWD/init.sql"`, "mysql://rivulet@tcp(127.0.0.1:%d)/lab"},
}

// Start returns the address of a server's database, as sqlserver.Parse takes it, when it answers. It skips a test that
// is not run by root or where the server is not installed.
func Start(t *testing.T, name string) (address string) {
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
	address = fmt.Sprintf(s.address, port)
	at, err := sqlserver.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	db, err := at.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	await.NoError(t, t.Context(), time.Minute, name+" answers", func() error { return db.PingContext(t.Context()) })
	return address
}
