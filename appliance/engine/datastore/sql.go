package datastore

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"rivulet/appliance/config/sqlserver"
	"rivulet/appliance/health"
	"rivulet/appliance/state/durable"
	"rivulet/appliance/state/paths"
	"rivulet/fabric/changes"
	"rivulet/fabric/cure"
)

// An SQL database belongs to the cluster that is named in its table rivulet_cluster, which has at most one row. A
// cluster is named by the hash of its token, which is made and stored before the first start: k3s encrypts its copy of
// the authorities in the database with it, so that a device whose files were torn by a power cut gets them back.

// ElectEnv is set in the environment of an engine whose cluster has standby servers: its controllers elect leaders.
const ElectEnv = "RIVULET_ELECT"

// SQLCluster is what a device remembers of a cluster whose objects are in an SQL server (paths.SQLCluster).
type SQLCluster struct {
	// Token is k3s's token of servers, a secret.
	Token string `json:"token"`
	// Database names the database that was used last, for messages; empty until the cluster has one.
	Database string `json:"database,omitempty"`
}

// LoadSQLCluster returns what is remembered in a state folder, the zero value for a cluster in a file.
func LoadSQLCluster(state string) (c SQLCluster, err error) {
	raw, err := os.ReadFile(paths.SQLCluster(state))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		return c, cure.Errorf("datastore: %s: %w; restore a backup: rivulet restore FILE", paths.SQLCluster(state), err)
	}
	return c, nil
}

// Save stores it in a state folder.
func (c SQLCluster) Save(state string) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return durable.Write(paths.SQLCluster(state), raw, 0o600)
}

// name is the cluster's in its database.
func (c SQLCluster) name() string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte("rivulet "+c.Token)))
}

// database is an SQL database in use.
type database struct {
	sqlserver.Server
	*sql.DB
}

const (
	// sqlTimeout bounds one question to an SQL server, sqlEvery is the interval of checks while the engine runs.
	sqlTimeout = 10 * time.Second
	sqlEvery   = 10 * time.Second
)

// prepareSQL returns an error with a cure unless the database at address is this cluster's; an empty one becomes that
// of a cluster that has no objects yet.
func (g *Guard) prepareSQL(ctx context.Context, address string) error {
	at, err := sqlserver.Parse(address)
	if err != nil {
		return err
	}
	pool, err := at.Open()
	if err != nil {
		return err
	}
	db := &database{at, pool}
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	if err := g.own(ctx, db); err != nil {
		pool.Close()
		return err
	}
	g.db.Store(db)
	return nil
}

// own makes sure that the database is this cluster's.
func (g *Guard) own(ctx context.Context, db *database) error {
	owner, filled, err := db.owner(ctx)
	if err != nil {
		return db.Explain(err)
	}
	c, err := LoadSQLCluster(g.State)
	switch {
	case err != nil:
		return err
	case c.Token == "" && begun(g.State):
		return cure.Errorf("the objects of this cluster are in a file of this device, and a cluster is not moved to %s; remove datastore from the configuration, or begin anew with an empty cluster there: rivulet reset", db)
	case c.Token == "":
		c.Token = rand.Text()
	}
	foreign := cure.Errorf("%s has the objects of another cluster, or those from before a reset of this device; name another database in datastore of the configuration, or, if nobody needs them, delete them there: DROP TABLE IF EXISTS kine, rivulet_cluster, rivulet_gateway", db)
	_, unserved := os.Stat(paths.Server(g.State, "token")) // the engine writes it after its first objects
	switch {
	case owner == c.name() && (filled || unserved != nil):
	case owner != c.name() && (filled || owner != ""):
		return foreign
	case c.Database != "":
		return cure.Errorf("%s has no objects, and those of this cluster were in %s; put datastore back in the configuration, restore the database from its own backup, or begin anew with an empty cluster: rivulet reset", db, c.Database)
	default:
		if err := c.Save(g.State); err != nil {
			return err
		}
		if owner, err = db.claim(ctx, c.name()); err != nil {
			return db.Explain(err)
		}
		if owner != c.name() {
			return foreign
		}
	}
	if c.Database == db.String() {
		return nil
	}
	c.Database = db.String()
	return c.Save(g.State)
}

// begun reports whether a cluster was begun in a file of this device.
func begun(state string) bool {
	_, db := os.Stat(Path(state))
	_, ca := os.Stat(paths.Server(state, "tls", "server-ca.crt"))
	return db == nil || ca == nil
}

// owner returns the name of the cluster that the database belongs to, empty if there is none, and whether it has any
// objects.
func (db *database) owner(ctx context.Context) (name string, filled bool, err error) {
	there, err := db.has(ctx, "rivulet_cluster")
	if err == nil && there {
		err = db.QueryRowContext(ctx, "SELECT COALESCE(MAX(name), '') FROM rivulet_cluster").Scan(&name)
	}
	if err == nil {
		filled, err = db.any(ctx, "/")
	}
	return name, filled, err
}

func (db *database) has(ctx context.Context, table string) (bool, error) {
	var n int
	err := db.QueryRowContext(ctx, db.Bind("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = "+db.Schema()+" AND table_name = ?"), table).Scan(&n)
	return n > 0, err
}

// any reports whether there is a revision of a key with the prefix, of deleted ones too.
func (db *database) any(ctx context.Context, prefix string) (bool, error) {
	there, err := db.has(ctx, "kine")
	if err != nil || !there {
		return false, err
	}
	var n int
	err = db.QueryRowContext(ctx, db.Bind("SELECT COUNT(*) FROM (SELECT id FROM kine WHERE name LIKE ? LIMIT 1) AS found"), prefix+"%").Scan(&n)
	return n > 0, err
}

// claim writes the name of a cluster into a database without one, and returns whose it is then: of two clusters that
// claim it at the same time one gets it.
func (db *database) claim(ctx context.Context, name string) (owner string, err error) {
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS rivulet_cluster (id INTEGER PRIMARY KEY, name VARCHAR(64) NOT NULL)"); err != nil {
		return "", err
	}
	_, err = db.ExecContext(ctx, db.Bind("INSERT INTO rivulet_cluster (id, name) VALUES (1, ?)"), name)
	owner, _, rerr := db.owner(ctx)
	if owner != "" {
		return owner, nil // the other one has inserted it
	}
	return "", errors.Join(err, rerr)
}

// New reports whether the datastore has never had a cluster. Prepare has been called before.
func (g *Guard) New(ctx context.Context) (bool, error) {
	db := g.db.Load()
	if db == nil {
		_, err := os.Stat(Path(g.State))
		return errors.Is(err, fs.ErrNotExist), nil
	}
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	there, err := db.any(ctx, "/bootstrap/") // k3s's copy of the authorities
	return !there, db.Explain(err)
}

// Delete is the function of that name, for the datastore in use. Prepare has been called before.
func (g *Guard) Delete(ctx context.Context, prefix string, match func(key string, value []byte) bool) (int, error) {
	db := g.db.Load()
	if db == nil {
		return Delete(ctx, Path(g.State), prefix, match)
	}
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	if there, err := db.any(ctx, prefix); err != nil || !there {
		return 0, db.Explain(err)
	}
	n, err := deleteIn(ctx, db.DB, db.Bind, prefix, match)
	return n, db.Explain(err)
}

// watchSQL reports whether the SQL server answers, until ctx ends.
func (g *Guard) watchSQL(ctx context.Context) error {
	for changes.Wait(ctx, sqlEvery) {
		if db := g.db.Load(); db != nil {
			if err := db.answers(ctx); ctx.Err() == nil && g.db.Load() == db {
				g.Health.Report(health.DatastoreUnusable, db.Explain(err))
			}
		}
	}
	return nil
}

func (db *database) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	return db.PingContext(ctx)
}
