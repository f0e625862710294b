// Package datastore tests, on two devices of a lab with the real binary, clusters whose objects are in an SQL server:
// a's in Debian's PostgreSQL, b's in Debian's MariaDB. Both servers run on b. The tests share the devices, and run in
// the order of the files.
package datastore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
	"rivulet/test/harness/mainjob"
)

const (
	config   = "/etc/rivulet/config.yaml"
	programs = "/usr/lib/postgresql/15/bin/"
	maria    = "/usr/sbin/mariadbd"
	password = "sEcReT-of-the-database"
	// server is b's address, as the lab gives it.
	server = "10.77.0.12"
	// address is that of a's database.
	address = "postgres://rivulet:" + password + "@" + server + ":5432/lab?sslmode=disable"
	named   = "PostgreSQL at " + server + ":5432, database lab"
)

var suite = labtest.Suite{
	Needs: map[string]string{programs + "initdb": "test/deps databases", maria: "test/deps databases"},
}

func TestMain(m *testing.M) {
	suite.Main(m, "datastore", lab.Options{Devices: 2}, "/var/lib/rivulet/log/engine.log", "/var/lib/sql/log")
}

func devices() (a, b *lab.Device) { return suite.Devices["a"], suite.Devices["b"] }

// write replaces the configuration; only root can read it.
func write(t *testing.T, ctx context.Context, d *lab.Device, text string) {
	t.Helper()
	labtest.Must(t, ctx, d, "sh", "-c", `umask 077; mkdir -p /etc/rivulet && printf '%s' "$1" > $0.tmp && mv $0.tmp $0`, config, text)
}

// shows waits until the printed status has all words of want and none of not.
func shows(t *testing.T, ctx context.Context, d *lab.Device, want []string, not ...string) {
	t.Helper()
	await.NoError(t, ctx, 90*time.Second, fmt.Sprintf("%s shows %q", d.Name, want), func() error {
		text := labtest.On(t, ctx, d, "rivulet", "status").Out
		for _, w := range want {
			if !strings.Contains(text, w) {
				return fmt.Errorf("%q is missing in:\n%s", w, text)
			}
		}
		for _, w := range append(not, password) {
			if strings.Contains(text, w) {
				return fmt.Errorf("%q is there in:\n%s", w, text)
			}
		}
		return nil
	})
}

// ready waits until the device is, without a problem of its datastore.
func ready(t *testing.T, ctx context.Context, d *lab.Device) {
	t.Helper()
	shows(t, ctx, d, []string{d.Name + "  Ready"}, "datastore-unusable")
}

// asUser runs a script on b as the user of Debian's PostgreSQL, in the folder of the databases.
func asUser(t *testing.T, ctx context.Context, script string) string {
	t.Helper()
	_, b := devices()
	return labtest.Must(t, ctx, b, "sh", "-ec", `mkdir -p /var/lib/sql && chown postgres /var/lib/sql && cd /var/lib/sql
		exec setpriv --reuid=postgres --regid=postgres --clear-groups sh -ec "$1"`, "sh", script)
}

// psql runs a statement as the owner of PostgreSQL's databases.
func psql(t *testing.T, ctx context.Context, database, statement string) string {
	t.Helper()
	return asUser(t, ctx, fmt.Sprintf("%spsql -h /tmp -At -v ON_ERROR_STOP=1 -d %s -c %q", programs, database, statement))
}

func startPostgres(t *testing.T, ctx context.Context) {
	t.Helper()
	asUser(t, ctx, programs+"pg_ctl -D pg -w -t 60 -l log -o '-k /tmp -h "+server+"' start >/dev/null")
}

// provide gives the device the image of the Deployment.
func provide(t *testing.T, ctx context.Context, d *lab.Device) {
	t.Helper()
	if err := mainjob.ImportImage(ctx, []*lab.Device{d}); err != nil {
		t.Fatal(err)
	}
}

// deploy makes a Deployment with one pod, and waits until it runs.
func deploy(t *testing.T, ctx context.Context, d *lab.Device) {
	t.Helper()
	provide(t, ctx, d)
	labtest.Kubectl(t, ctx, d, "create", "deployment", "web", "--image="+mainjob.Image)
	labtest.Kubectl(t, ctx, d, "rollout", "status", "deployment/web", "--timeout=90s")
}

// processes are the process numbers of the Deployment's pod; containerd ends and starts with the engine.
func processes(t *testing.T, ctx context.Context, d *lab.Device) string {
	t.Helper()
	return labtest.Must(t, ctx, d, "pgrep", "-x", "web")
}
