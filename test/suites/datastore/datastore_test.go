package datastore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rivulet/test/harness/await"
	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// A cluster that has begun in a file is not moved by the setting: nothing of it ends, and the message has a cure.
func TestAClusterInAFileStaysThere(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a, _ := devices()
	asUser(t, ctx, `umask 077
		`+programs+`initdb -D pg -A scram-sha-256 --auth-local=trust >/dev/null
		echo "host all rivulet 10.77.0.0/24 scram-sha-256" >> pg/pg_hba.conf`)
	startPostgres(t, ctx)
	psql(t, ctx, "postgres", "CREATE USER rivulet PASSWORD '"+password+"'")
	psql(t, ctx, "postgres", "CREATE DATABASE lab OWNER rivulet")

	deploy(t, ctx, a)
	before := processes(t, ctx, a)
	write(t, ctx, a, "datastore: "+address+"\n")
	shows(t, ctx, a, []string{"datastore-unusable", "the objects of this cluster are in a file of this device, and a cluster is not moved to " + named, "rivulet reset"}, "a  Ready")
	if now := processes(t, ctx, a); before == "" || now != before {
		t.Errorf("the processes are %q, before %q", now, before)
	}
	write(t, ctx, a, "")
	ready(t, ctx, a)
	if got := psql(t, ctx, "lab", "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'"); got != "0" {
		t.Errorf("%s tables were made in a database that was refused", got)
	}
}

// A cluster begins as soon as its database can be reached, and says until then what is missing.
func TestAClusterBeginsInPostgreSQL(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	a, _ := devices()
	asUser(t, ctx, programs+"pg_ctl -D pg -w -m fast stop")
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, a, "rivulet", "reset", "--yes", "--no-start")
	write(t, ctx, a, "datastore: "+strings.Replace(address, password, "wrong-"+password, 1)+"\n")
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, a, []string{named + ": connection refused", "start the SQL server at " + server + ":5432"})
	startPostgres(t, ctx)
	shows(t, ctx, a, []string{named + ": password authentication failed for user \"rivulet\"", "correct the user or the password of " + server + ":5432 in datastore of the configuration"})
	if out := labtest.On(t, ctx, a, "rivulet", "doctor").Out; !strings.Contains(out, "datastore-unusable") || strings.Contains(out, password) {
		t.Errorf("doctor: %s", out)
	}
	write(t, ctx, a, "datastore: "+address+"\n")
	ready(t, ctx, a)
	deploy(t, ctx, a)
	if got := psql(t, ctx, "lab", "SELECT COUNT(*) FROM kine WHERE name = '/registry/deployments/default/web'"); got == "0" {
		t.Error("the Deployment is not in the database")
	}
	if _, err := os.Stat(a.Path("/var/lib/rivulet/k3s/server/db/state.db")); err == nil {
		t.Error("there is a file with objects, too")
	}
}

// The password is in no command line, environment of the engine's programs, log, status, object or bundle.
func TestThePasswordIsNotSeen(t *testing.T) {
	ctx := suite.Bounded(t, 2*time.Minute)
	a, _ := devices()
	for what, out := range map[string]string{
		"command lines": labtest.Must(t, ctx, a, "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"),
		"the environment of containerd": labtest.Must(t, ctx, a, "sh", "-c", `for p in /proc/[0-9]*; do
			case "$(tr '\0' ' ' < $p/cmdline)" in *containerd\ *|*shim*) cat $p/environ;; esac; done | tr '\0' '\n'`),
		"engine.log":     labtest.Must(t, ctx, a, "cat", "/var/lib/rivulet/log/engine.log"),
		"rivulet run":    labtest.Must(t, ctx, a, "cat", "/var/log/rivulet.log"),
		"status":         labtest.Must(t, ctx, a, "rivulet", "status", "-o", "json"),
		"config show":    labtest.Must(t, ctx, a, "rivulet", "config", "show"),
		"the Node":       labtest.Kubectl(t, ctx, a, "get", "node", "a", "-o", "json"),
		"support bundle": labtest.Must(t, ctx, a, "sh", "-c", "rivulet support -o /tmp/bundle.tar.gz >/dev/null && tar -xzOf /tmp/bundle.tar.gz"),
	} {
		if len(out) < 100 {
			t.Errorf("%s: %q", what, out)
		}
		if strings.Contains(out, password) {
			t.Errorf("%s: the password is there", what)
		}
	}
}

// A database that goes away is reported and comes back by itself; pods go on, also over a power cut of the device.
func TestADatabaseThatIsLost(t *testing.T) {
	ctx := suite.Bounded(t, 5*time.Minute)
	a, _ := devices()
	before := processes(t, ctx, a)
	asUser(t, ctx, programs+"pg_ctl -D pg -w -m immediate stop")
	shows(t, ctx, a, []string{"datastore-unusable", named + ": connection refused", "start the SQL server at " + server + ":5432"})
	if now := processes(t, ctx, a); before == "" || now != before {
		t.Errorf("the processes are %q, before %q", now, before)
	}
	startPostgres(t, ctx)
	ready(t, ctx, a)

	if err := suite.Lab.Cut("a", "b"); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, a, []string{"datastore-unusable", named + ": it does not answer"})
	if err := suite.Lab.Heal(); err != nil {
		t.Fatal(err)
	}
	ready(t, ctx, a)
	if now := processes(t, ctx, a); now != before {
		t.Errorf("the processes are %q, before %q", now, before)
	}
	works(t, a)

	if err := a.Kill(ctx, "power"); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	ready(t, ctx, a)
	works(t, a)
}

// works waits until a change of an object has its effect: the pod is replaced.
func works(t *testing.T, d *lab.Device) {
	t.Helper()
	ctx := suite.Bounded(t, 2*time.Minute)
	await.NoError(t, ctx, time.Minute, "the API takes changes", func() error {
		_, err := d.Kubectl(ctx, "rollout", "restart", "deployment/web")
		return err
	})
	labtest.Kubectl(t, ctx, d, "rollout", "status", "deployment/web", "--timeout=60s")
}

// The setting cannot be left out of the configuration, and no other database takes its place, with a message each.
func TestAnotherDatabaseIsRefused(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a, _ := devices()
	psql(t, ctx, "postgres", "CREATE DATABASE empty OWNER rivulet")
	psql(t, ctx, "postgres", "CREATE DATABASE other OWNER rivulet")
	psql(t, ctx, "other", "CREATE TABLE kine (id INT, name TEXT); INSERT INTO kine VALUES (1, '/registry/pods/x/y'); ALTER TABLE kine OWNER TO rivulet")
	write(t, ctx, a, "")
	shows(t, ctx, a, []string{"the objects of this cluster are in " + named + ", and datastore is not in the configuration", "put it back"}, "a  Ready")
	write(t, ctx, a, "datastore: "+strings.Replace(address, "/lab", "/empty", 1)+"\n")
	shows(t, ctx, a, []string{"database empty has no objects, and those of this cluster were in " + named}, "a  Ready")
	write(t, ctx, a, "datastore: "+strings.Replace(address, "/lab", "/other", 1)+"\n")
	shows(t, ctx, a, []string{"database other has the objects of another cluster", "DROP TABLE IF EXISTS kine"}, "a  Ready")
	write(t, ctx, a, "datastore: "+strings.Replace(address, "/lab", "/missing", 1)+"\n")
	shows(t, ctx, a, []string{"database missing", "CREATE DATABASE missing"}, "a  Ready")
	write(t, ctx, a, "datastore: "+address+"\n")
	ready(t, ctx, a)
	works(t, a)
	if got := psql(t, ctx, "other", "SELECT COUNT(*) FROM kine"); got != "1" {
		t.Errorf("the other cluster's database has %s rows", got)
	}
}

// A backup says where the objects are; restored on an empty device it leads to them.
func TestABackupLeadsToTheDatabase(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a, _ := devices()
	r := labtest.On(t, ctx, a, "rivulet", "backup", "/var/lib/a.backup")
	if r.Code != 0 || !strings.Contains(r.ErrOut, "the cluster's objects are not in it: save "+named) {
		t.Fatalf("%+v", r)
	}
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, a, "rivulet", "reset", "--yes", "--no-start", "--factory")
	if left, _ := filepath.Glob(a.Path("/var/lib/rivulet/k3s*")); len(left) > 0 {
		t.Fatalf("left by the reset: %q", left)
	}
	if out := labtest.Must(t, ctx, a, "rivulet", "restore", "/var/lib/a.backup"); !strings.Contains(out, "the cluster's objects are what "+named+" has") {
		t.Errorf("%s", out)
	}
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	ready(t, ctx, a)
	provide(t, ctx, a) // images are in no backup
	works(t, a)
}

// After a reset the device does not take the database of the cluster before for its own; after it was emptied it does.
func TestAResetLeavesTheDatabase(t *testing.T) {
	ctx := suite.Bounded(t, 4*time.Minute)
	a, _ := devices()
	if err := a.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, a, "rivulet", "reset", "--yes", "--no-start")
	if err := a.Start(ctx); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, a, []string{named + " has the objects of another cluster, or those from before a reset of this device"}, "a  Ready")
	if got := psql(t, ctx, "lab", "SELECT COUNT(*) FROM kine WHERE name = '/registry/deployments/default/web' AND deleted = 0"); got == "0" {
		t.Error("the objects of the cluster before are gone")
	}
	psql(t, ctx, "lab", "DROP TABLE IF EXISTS kine, rivulet_cluster, rivulet_gateway")
	ready(t, ctx, a)
	if _, err := a.Kubectl(ctx, "get", "deployment", "web"); err == nil {
		t.Error("the Deployment of the cluster before is there")
	}
}

// The same with MariaDB, as far as the drivers differ.
func TestMariaDB(t *testing.T) {
	ctx := suite.Bounded(t, 6*time.Minute)
	_, b := devices()
	asUser(t, ctx, `umask 077
		mariadb-install-db --no-defaults --datadir=/var/lib/sql/maria --auth-root-authentication-method=normal --skip-test-db >>log 2>&1
		printf '%s\n' "CREATE DATABASE IF NOT EXISTS lab;" "CREATE USER IF NOT EXISTS rivulet IDENTIFIED BY '`+password+`';" "GRANT ALL ON lab.* TO rivulet;" > init.sql`)
	start := func() {
		asUser(t, ctx, "setsid "+maria+" --no-defaults --datadir=/var/lib/sql/maria --socket=/tmp/maria.sock --pid-file=/var/lib/sql/maria.pid --bind-address="+server+" --init-file=/var/lib/sql/init.sql </dev/null >>log 2>&1 &")
	}
	start()
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	labtest.Must(t, ctx, b, "rivulet", "reset", "--yes", "--no-start")
	write(t, ctx, b, "datastore: mysql://rivulet:wrong-"+password+"@tcp("+server+":3306)/lab?tls=false\n")
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	shows(t, ctx, b, []string{"MySQL at " + server + ":3306, database lab: Access denied", "correct the user or the password of " + server + ":3306"}, "b  Ready")
	write(t, ctx, b, "datastore: mysql://rivulet:"+password+"@tcp("+server+":3306)/lab?tls=false\n")
	ready(t, ctx, b)
	deploy(t, ctx, b)
	asUser(t, ctx, "kill -9 $(cat maria.pid)")
	shows(t, ctx, b, []string{"datastore-unusable", "start the SQL server at " + server + ":3306"})
	start()
	ready(t, ctx, b)
	works(t, b)
	// Certificates and leases of another time are removed before a start (package certs).
	if err := b.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	ready(t, ctx, b)
	works(t, b)
}
