"""Spellings of secrets in commands, settings and messages, and lookalikes that must stay readable.

In a spelling `{s}` is replaced by a secret. Every lookalike must be unchanged.
"""

from __future__ import annotations

__all__ = ["LOOKALIKES", "SPELLINGS"]

_COMMAND_LINES = r"""
mysql -u root -p{s} shop
mysql -uroot -p'{s}' -h db shop
mysql -h db -u root "-p{s}"
mysqldump --user=root --password={s} shop > dump.sql
mysqladmin -u root password {s}
mariadb -p{s} -e 'select 1'
mysql --defaults-extra-file=/dev/null --password="{s}" shop
sudo -u deploy mysql -p{s} shop
ssh db01 mysql -p{s} shop
bash -c 'mysql -p{s} shop'
bash -lc "docker exec db mysql -p{s} shop"
docker exec db sh -c "mysqldump -p{s} shop" > dump.sql
echo "$(mysql -p{s} -e 'select 1')"
x=`mysql -p{s} -e 'select 1'`
make && mysql -p{s} shop || exit 1
/usr/bin/mysql -p{s}
MYSQL_PWD={s} mysql -u root shop
MYSQL_PWD='{s}' mysqldump shop
PGPASSWORD={s} psql -h db -U app shop
env PGPASSWORD="{s}" pg_dump shop
psql postgres://app:{s}@db:5432/shop
psql "postgresql://app:{s}@db/shop?sslmode=require"
psql "host=db user=app password={s} dbname=shop"
psql -c "ALTER USER app WITH PASSWORD '{s}'"
mysql -e "CREATE USER 'app'@'%' IDENTIFIED BY '{s}'"
mysql -e "SET PASSWORD FOR app = PASSWORD('{s}')"
redis-cli -h cache -a {s} ping
redis-cli -u redis://:{s}@cache:6379 ping
redis-cli --pass {s} info
REDISCLI_AUTH={s} redis-cli ping
mongosh -u admin -p {s} --authenticationDatabase admin
mongodump --uri "mongodb+srv://admin:{s}@cluster0.example.net/shop"
sqlcmd -S db -U sa -P {s} -Q "select 1"
sqlplus app/{s}@//db:1521/orcl
cqlsh -u app -p {s} db
clickhouse-client --user app --password {s}
curl -u alice:{s} https://api.example.com/v1
curl -sSu alice:{s} https://api.example.com/v1
curl --user "alice:{s}" https://api.example.com/v1
curl --user='alice:{s}' https://api.example.com/v1
curl -x http://bob:{s}@proxy:3128 https://example.com
curl -x bob:{s}@proxy:3128 https://example.com
curl -U bob:{s} -x proxy:3128 https://example.com
curl --proxy-user bob:{s} -x proxy:3128 https://example.com
curl -H "Authorization: Bearer {s}" https://api.example.com
curl -H 'Authorization: Token {s}' https://api.example.com
curl -H 'Authorization: {s}' https://api.example.com
curl -H 'X-Api-Key: {s}' https://api.example.com
curl -H X-Auth-Token:{s} https://api.example.com
curl --header "PRIVATE-TOKEN: {s}" https://gitlab.example.com/api/v4/projects
curl -H "Cookie: session={s}; theme=dark" https://example.com
curl -b 'session={s}' https://example.com
curl --oauth2-bearer {s} https://api.example.com
curl -d '{"user":"alice","password":"{s}"}' https://api.example.com/login
curl --data "user=alice&password={s}" https://api.example.com/login
curl -d "{\"password\": \"{s}\"}" https://api.example.com/login
curl -F token={s} -F file=@x.zip https://upload.example.com
curl "https://maps.example.com/geo?address=x&key={s}"
curl https://api.example.com/x?key={s}
curl 'https://api.example.com/x?page=2&access_token={s}&sort=asc'
curl 'https://acc.blob.core.example.net/c/f?sv=2022&sp=r&sig={s}'
curl 'https://b.s3.example.com/f?X-Amz-Expires=60&X-Amz-Signature={s}'
wget --user=alice --password={s} https://example.com/f
wget --http-user=alice --http-password={s} https://example.com/f
wget "https://alice:{s}@example.com/f"
http -a alice:{s} GET example.com
git clone https://oauth2:{s}@gitlab.example.com/a/b.git
git remote set-url origin https://alice:{s}@github.example.com/a/b
git -c http.extraheader="AUTHORIZATION: basic {s}" fetch
git config --global github.token {s}
sshpass -p {s} ssh root@host
sshpass -p{s} scp f host:
sshpass -p '{s}' rsync -a . host:
SSHPASS={s} sshpass -e ssh host
plink -ssh host -l root -pw {s}
docker login -u alice -p {s} registry.example.com
docker login --username alice --password {s}
docker login --username=alice --password='{s}' registry.example.com
echo {s} | docker login -u alice --password-stdin
printf '%s' '{s}' | podman login --password-stdin quay.example.com
docker login -u alice --password-stdin <<< {s}
docker login -u alice --password-stdin <<< "{s}"
docker run -e POSTGRES_PASSWORD={s} -p 5432:5432 postgres
docker run --env 'API_TOKEN={s}' app
docker build --build-arg NPM_TOKEN={s} .
skopeo copy --dest-creds alice:{s} docker://a docker://b
helm registry login -u alice -p {s} registry.example.com
helm upgrade app ./chart --set image.tag=1 --set db.password={s}
echo {s} | sudo -S apt-get install -y jq
echo '{s}' | sudo -kS true
sudo -S true <<< '{s}'
sudo -S -p '' id <<< "{s}"
printf '{s}\n' | sudo -S id
echo 'alice:{s}' | sudo chpasswd
echo {s} | passwd --stdin alice
usermod -p {s} alice
useradd -m -p '{s}' alice
echo {s} | gh auth login --with-token
gh auth login --with-token <<< {s}
gh secret set NPM_TOKEN --body {s}
gh secret set NPM_TOKEN -b"{s}"
glab auth login --token {s}
openssl enc -aes-256-cbc -k {s} -in a -out b
openssl enc -aes-256-cbc -pass pass:{s} -in a -out b
openssl rsa -in k.pem -passin pass:{s} -out k2.pem
openssl pkcs12 -export -in c.pem -passout 'pass:{s}' -out c.p12
gpg --batch --passphrase {s} -d f.gpg
gpg --batch --passphrase='{s}' -c f
echo {s} | gpg --batch --passphrase-fd 0 -d f.gpg
7z a -p{s} -mhe=on x.7z dir
7z x x.7z -p"{s}"
zip -P {s} -r x.zip dir
zip -rP {s} x.zip dir
unzip -P {s} x.zip
unrar x -p{s} x.rar
ssh-keygen -t ed25519 -N {s} -f id
ssh-keygen -p -P {s} -N '' -f id
ldapsearch -x -D cn=admin -w {s} -b dc=example
ldapsearch -xw {s} -D cn=admin
ldappasswd -s {s} -D cn=admin uid=a
smbclient //srv/share -U alice%{s}
mount -t cifs //srv/share /mnt -o username=alice,password={s},uid=1000
net use Z: \\srv\share {s} /user:alice
net user alice {s} /add
xfreerdp /u:alice /p:{s} /v:host
htpasswd -b .htpasswd alice {s}
htpasswd -nbB alice '{s}'
snmpwalk -v3 -u alice -l authPriv -A {s} -X other-passphrase host
snmpwalk -v2c -c {s} host
ansible all -m ping -e "ansible_password={s}"
ansible-playbook site.yml --extra-vars 'db_password={s} env=prod'
ansible-vault encrypt_string --name x '{s}'
terraform apply -var "db_password={s}"
terraform apply -var=api_token={s} -auto-approve
TF_VAR_db_password={s} terraform plan
az login --service-principal -u app -p {s} --tenant t
az keyvault secret set --vault-name v --name n --value {s}
aws configure set aws_secret_access_key {s}
aws configure set profile.x.aws_session_token '{s}'
AWS_SECRET_ACCESS_KEY={s} aws s3 ls
aws secretsmanager create-secret --name n --secret-string {s}
aws ssm put-parameter --name n --type SecureString --value {s}
aws rds create-db-instance --master-user-password {s}
gcloud sql users set-password app --instance=i --password={s}
kubectl create secret generic db --from-literal=password={s}
kubectl create secret generic db --from-literal=x={s} -n prod
kubectl create secret generic db --from-literal license={s}
kubectl create secret docker-registry r --docker-username=a --docker-password={s}
kubectl config set-credentials alice --token={s}
oc login -u alice -p {s} https://ocp.example.com
vault kv put secret/app value={s}
vault login {s}
VAULT_TOKEN={s} vault kv get secret/app
consul kv get -token={s} app/x
heroku config:set SOMETHING={s} -a app
fly secrets set DATABASE={s}
npm config set //registry.example.com/:_authToken {s}
npm config set //registry.example.com/:_authToken={s}
NPM_TOKEN={s} npm publish
yarn config set npmAuthToken {s}
pip install --index-url https://alice:{s}@pypi.example.com/simple pkg
twine upload -u __token__ -p {s} dist/*
poetry config pypi-token.pypi {s}
poetry config http-basic.corp alice {s}
cargo login {s}
cargo publish --token {s}
dotnet nuget push p.nupkg -k {s} -s https://nuget.example.com
composer config github-oauth.github.com {s}
mvn deploy -Drepo.password={s}
gradle publish -PsigningPassword={s}
keytool -genkey -keystore k.jks -storepass {s} -alias a
keytool -list -keystore k.jks -storepass:env X -keypass {s}
security add-generic-password -a alice -s svc -w {s}
security unlock-keychain -p {s} login.keychain
mosquitto_pub -h mq -u alice -P {s} -t t -m hello
rabbitmqctl add_user alice {s}
nmcli dev wifi connect home password {s}
wpa_passphrase home {s}
ngrok config add-authtoken {s}
tailscale up --authkey={s}
mc alias set s3 https://s3.example.com alice {s}
lftp -u alice,{s} ftp.example.com
rclone obscure {s}
pulumi config set --secret dbValue {s}
wrangler deploy --api-token {s}
export GITHUB_TOKEN={s}
export DB_PASS="{s}"
export GH_TOKEN='{s}' && gh pr list
set -x FOO_SECRET {s}
setx API_KEY {s}
$env:API_KEY = "{s}"
SECRET_KEY_BASE={s} rails server
API_KEY={s} ./deploy.sh --region eu
python -c "import x; x.login(password='{s}')"
python -c "requests.get(u, auth=('alice', '{s}'))"
ConvertTo-SecureString '{s}' -AsPlainText -Force
impacket-psexec corp/alice:{s}@10.0.0.5
ipmitool -H bmc -U admin -P {s} power status
restic -r s3:x backup . --password-command "echo {s}"
RESTIC_PASSWORD={s} restic backup .
borg create --passphrase {s} repo::a .
mysql -hdb.example.com -uapp -p{s} -Dshop -N -e "show tables"
nohup mysqldump -u root -p{s} --all-databases | gzip > all.sql.gz &
for h in a b; do sshpass -p {s} ssh root@$h uptime; done
if ! redis-cli -a "{s}" ping; then echo down; fi
time PGPASSWORD={s} psql -c 'select 1'
export PGPASSWORD={s}; psql
(cd x && curl -su ci:{s} https://nexus/x -o y)
curl -fsSL --user ci:{s} -T f https://nexus/x
curl -XPOST -H "authorization: Bearer {s}" -H 'content-type: application/json' https://x
curl -H "api-key:{s}" https://x
curl -H "X-API-KEY: {s}" https://x
curl -H 'apikey: {s}' https://x
curl -H "Authorization:Basic {s}==" https://x
curl --cookie "JSESSIONID={s}" https://x
curl "ftp://bob:{s}@ftp.example.com/f"
curl -k "https://x/y?foo=1&apikey={s}"
curl "https://x/y?foo=1&client_secret={s}&x=2"
wget -qO- "https://x/?auth_token={s}"
echo "{s}" | sudo --stdin ls
echo -n {s} | sudo -S -k ls /root
sudo -S <<<{s} ls
docker run -d -e MYSQL_ROOT_PASSWORD={s} mysql:8
docker run --rm -e "AWS_SECRET_ACCESS_KEY={s}" amazon/aws-cli s3 ls
docker-compose run -e SECRET={s} web
podman login -u a -p={s} quay.io
kubectl create secret generic x --from-literal='api={s}'
kubectl --token={s} get pods
kubectl patch secret x -p '{"stringData":{"password":"{s}"}}'
helm install x y --set-string auth.rootPassword={s}
helm install x y --set auth.username=a,auth.password={s}
openssl enc -aes-128-cbc -d -in x -k {s}
openssl pkcs12 -in x -password pass:{s}
ansible-playbook x.yml -e ansible_become_pass={s}
ansible-playbook x.yml -e '{"vault_token": "{s}"}'
terraform plan -var='token={s}'
vault write auth/userpass/users/bob password={s}
vault kv put -mount=secret foo bar={s}
az storage blob list --account-key {s}
az acr login -n x -u y -p {s}
gcloud auth activate-refresh-token a {s}
ssh-keygen -q -t rsa -N{s} -f k
gpg --pinentry-mode loopback --passphrase "{s}" --sign f
gpg --passphrase-fd 3 3<<<"{s}" -d f
7za x -p{s} a.7z
zip -e -P {s} a.zip b
ldapmodify -D cn=x -w'{s}' -f m.ldif
smbclient -U 'WORK\bob%{s}' //s/c
mount.cifs //s/c /m -o user=bob,pass={s}
htpasswd -cb f bob {s}
htpasswd -bc f bob {s}
snmpget -v 3 -A "{s}" h oid
npm set //registry.npmjs.org/:_authToken={s}
echo "//registry.npmjs.org/:_authToken={s}" > ~/.npmrc
echo "machine github.com login x password {s}" >> ~/.netrc
sed -i 's/^DB_PASSWORD=.*/DB_PASSWORD={s}/' .env
sed -i "s/password: .*/password: {s}/" c.yml
python -c 'import os; os.environ["API_KEY"]="{s}"'
python3 deploy.py --db-pass {s}
python3 deploy.py --password  {s}
./deploy --aws-secret-key "{s}"
./deploy --githubToken {s}
java -Djavax.net.ssl.keyStorePassword={s} -jar x.jar
java -jar x.jar --spring.datasource.password={s}
node -e "fetch(u,{headers:{Authorization:'Bearer {s}'}})"
psql -d "user=x password='{s}' host=y"
psql -c "create role x login password '{s}'"
mysql -e "alter user root@localhost identified with mysql_native_password by '{s}'"
mongosh "mongodb://root:{s}@localhost:27017/admin?x=y"
mongo admin -u root -p{s}
mongosh --eval 'db.auth("root","{s}")'
redis-cli AUTH {s}
redis-cli -h x CONFIG SET requirepass {s}
rsync rsync://bob:{s}@h/m .
RSYNC_PASSWORD={s} rsync bob@h::m .
heroku config:set A=b SECRET_THING={s}
fly secrets set X={s} --app y
gh secret set X -b {s}
doppler secrets set X={s}
pass:{s}
OPENAI_API_KEY={s} python x.py
set OPENAI_API_KEY={s}
$env:GITHUB_TOKEN="{s}"; gh pr list
fish -c 'set -gx TOKEN {s}'
env -i TOKEN={s} cmd
sh -c "sh -c 'mysql -p{s}'"
eval "mysql -p{s}"
ssh h "echo {s} | sudo -S reboot"
expect -c 'spawn ssh h; expect "assword:"; send "{s}\r"'
su - bob <<< {s}
cryptsetup open /dev/x y <<< {s}
bitcoin-cli -rpcuser=a -rpcpassword={s} getinfo
wrk -H "Authorization: Bearer {s}" http://x
ab -A bob:{s} http://x/
grpcurl -H 'authorization: bearer {s}' h:1 x
hey -a bob:{s} http://x
nuget sources add -Name n -Source s -UserName u -Password {s}
dotnet user-secrets set "Db:Password" "{s}"
dotnet nuget add source s -n n -u u -p {s} --store-password-in-clear-text
mvn deploy -Dgpg.passphrase={s}
twine upload --password {s} dist/*
UV_PUBLISH_TOKEN={s} uv publish
uv publish --token {s}
huggingface-cli login --token {s}
wandb login {s}
snyk auth {s}
firebase deploy --token {s}
vercel --token={s} deploy
rails runner "User.create(password: '{s}')"
php artisan x --password={s}
wp user create bob b@x --user_pass={s}
drush user-create bob --password="{s}"
winrm -p {s} x
psexec \\h -u bob -p {s} cmd
schtasks /create /ru bob /rp {s} /tn x
cmdkey /add:h /user:bob /pass:{s}
kubeadm join h:6443 --token {s}.abc --discovery-token-ca-cert-hash sha256:1
docker swarm join --token {s} h:2377
consul acl set-agent-token agent {s}
etcdctl --user root:{s} get x
elasticdump --input=http://e:{s}@h:9200/i
curl -u elastic:{s} -XGET h:9200
kcat -b h -X sasl.username=a -X sasl.password={s}
mosquitto_sub -u a -P{s} -t x
ffmpeg -i "rtsp://cam:{s}@10.0.0.2/s" o.mp4
svn checkout --username alice --password {s} https://svn.example.com/x
"""

_OTHER_TEXTS = (
    "cat > .env <<EOF\nAPP=shop\nDB_PASSWORD={s}\nEOF",
    "docker login -u alice --password-stdin <<EOF\n{s}\nEOF",
    "cat <<'END' | gh auth login --with-token\n{s}\nEND",
    "bash <<EOF\nmysql -p{s} shop\nEOF",
    "sudo -S id <<EOF\n{s}\nEOF\nls",
    "cat > secret.yaml <<EOF\nstringData:\n  password: {s}\nEOF",
    "mysql -u root \\\n  -p{s} \\\n  shop",
    "curl \\\n  -u alice:{s} \\\n  https://api.example.com",
    '{"command": "mysql -p{s} shop", "cwd": "/srv"}',
    '{"args": ["--api-key", "{s}"]}',
    '{"headers": {"Authorization": "Bearer {s}"}}',
    '{"headers": {"X-Api-Key": "{s}", "Accept": "*/*"}}',
    "{'access_token': '{s}', 'expires_in': 3600}",
    '{\\"client_secret\\":\\"{s}\\",\\"id\\":1}',
    "HTTP Request: POST https://mcp.example.com/mcp?api_key={s} \"HTTP/1.1 200 OK\"",
    'HTTP Request: GET https://alice:{s}@mcp.example.com/mcp "HTTP/1.1 401 Unauthorized"',
    "Client error '401' for url 'https://mcp.example.com/x?token={s}'",
    "redirected to http://localhost:8123/callback?code={s}&state=1",
    "https://example.com/cb#access_token={s}&token_type=bearer",
    "Set-Cookie: sid={s}; Path=/; HttpOnly",
    "DATABASE_URL=mysql://app:{s}@db/shop",
    "amqps://guest:{s}@mq.example.com:5671/vhost",
    "dsn: app:{s}@tcp(db:3306)/shop",
    "Server=db;User Id=sa;Password={s};Encrypt=true",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={s};EndpointSuffix=x",
    "spring.datasource.password={s}",
    "//registry.example.com/:_authToken={s}",
    "machine example.com login alice password {s}",
    "aws_secret_access_key = {s}",
    "password: {s}",
    "Proxy-Authorization: Basic {s}",
    "KeyError while calling login(user='alice', api_key='{s}')",
    "<password>{s}</password>",
    "<add key=\"ApiToken\" value=\"{s}\" />",
)  # fmt: skip

SPELLINGS: tuple[str, ...] = (*(line for line in _COMMAND_LINES.splitlines() if line), *_OTHER_TEXTS)

_LOOKALIKE_LINES = r"""
docker run -p 8080:80 nginx
docker run -p 127.0.0.1:3306:3306 --name db mysql
docker compose -p shop up -d
docker ps -a
docker exec -u root db bash
docker build --secret id=npm,src=.npmrc .
docker login registry.example.com
docker login --username alice --password-stdin
docker push registry.example.com/shop:1.2
mkdir -p src/app/components
ssh -p 22 deploy@host uptime
ssh -i ~/.ssh/id_ed25519 deploy@host
scp -P 2222 f deploy@host:/srv
git log -p -3
git log -p --author=alice
git add -p src
git stash push -m wip -u
git clone git@github.com:a/b.git
git clone ssh://git@github.com/a/b.git
git clone https://alice@github.example.com/a/b.git
git push -u origin main
git config user.email a@example.com
mysql -P 3306 -h db -u root -p shop
mysql -u root -p
mysql --protocol tcp -e 'select 1'
psql -p 5432 -U app shop
pg_dump -h db -p 5432 -U app shop
redis-cli -p 6380 ping
redis-cli -h cache -n 2 keys 'a*'
mongosh --port 27018
curl -x http://proxy:3128 https://example.com
curl -x socks5h://127.0.0.1:9050 https://example.com
curl -u alice https://api.example.com
curl -s https://api.example.com/items?page=2
curl 'https://api.example.com/items?page=2&sort=asc&limit=10'
curl -H 'Accept: application/json' -H "Content-Type: text/plain" https://example.com
curl -sSL -o out.json https://example.com
curl -X POST -d '{"name": "monkey", "count": 3}' https://example.com
curl --key client.pem --cert client.crt https://example.com
curl -H "Authorization: Bearer $TOKEN" https://api.example.com
curl -H "Authorization: Bearer ${API_TOKEN}" https://api.example.com
curl -u "$USER:$PASS" https://api.example.com
wget -q -P downloads https://example.com/f.zip
wget --user-agent=x https://example.com
tar -czpf x.tgz dir
tar xpf x.tar
cp -p a b
cp -rp a b
ps -p 1234
ps aux
lsof -i -P -n
zip -r x.zip dir
unzip -p x.zip f.txt
unzip -o x.zip -d dir
7z a x.7z dir
openssl version
openssl req -new -key k.pem -keyout k2.pem -out c.csr
openssl enc -d -aes-256-cbc -pass env:PASS -in a
openssl s_client -connect host:443
openssl rand -hex 32
gpg --passphrase-file f -d x.gpg
gpg --list-keys
ssh-keygen -t ed25519 -N '' -f id
ssh-keygen -l -f id.pub
ldapsearch -x -W -b dc=example
smbclient //srv/share -U alice
sudo -u postgres psql
sudo apt-get install -y jq
echo hello | sudo tee /etc/motd
echo hello | grep h
echo done
printf '%s\n' a b c
kubectl get secret db -o yaml
kubectl get pods -n kube-system
kubectl create secret generic db --from-file=cert.pem
kubectl create configmap c --from-file=a.txt
kubectl port-forward svc/db 5432:5432
helm upgrade app ./chart --set image.tag=1.2.3
helm install -f values.yaml app ./chart
terraform apply -var "region=eu-west-1"
terraform plan -out plan.bin
ansible-playbook site.yml --vault-password-file .vault
ansible all -m ping -u deploy --private-key ~/.ssh/id
az group list -o table
aws s3 ls s3://bucket --profile prod
aws configure set region eu-west-1
aws sts get-caller-identity
gcloud config set project shop
vault kv get secret/app
vault status
npm config set registry https://registry.example.com
npm install -g typescript
npm run build -- --mode production
npm run test -- -p 3
pip install -r requirements.txt
pip install -U pip
pytest -p no:cacheprovider -k token
pytest tests/test_password.py -x
grep -rn password src
grep -n "api_key" config.py
rg 'token' -g '*.py'
sed -n 1,20p secrets.md
find . -name '*.key' -print
ls -la ~/.ssh
cat token.txt
make -p
make -j4 all
rsync -avzP src/ host:/srv
nmap -p 22,80 host
nc -zv host 5432
perl -pe 's/a/b/' f
sed -i -e 's/a/b/' f
top -p 1234
xargs -P 4 -n 1 echo
yes | head
python -m http.server 8000
python manage.py migrate
python -c "print(max_tokens)"
node --max-old-space-size=4096 x.js
cargo build --release -p app
go test -run TestToken ./...
dotnet build -p:Configuration=Release
mvn -P prod -DskipTests package
gradle -Pversion=1.2 build
export PATH=$PATH:/usr/local/bin
export TOKEN=$OTHER_TOKEN
export API_TOKEN="${API_TOKEN}"
API_TOKEN=$(cat token.txt) ./deploy.sh
TOKEN=`pass show x` ./deploy.sh
PWD=/srv/app OLDPWD=/srv make
max_tokens=4096 temperature=0.2
tokenizer: cl100k_base
next_token=2 page_token=3
primary_key: id
keyboard: qwerty
pass tf_variables_of_the_second_module on
public_key=ssh-ed25519.pub
key: value
password_file=/run/secrets/db
token_type: bearer
PASSWORD_HASHERS = list
tokens: 120
"usage": {"input_tokens": 12, "output_tokens": 45}
the secret of success is patience
this uses basic authentication over TLS
bearer authentication is required
please reset your password and try again
see https://example.com/docs/tokens#rotation
https://example.com/search?q=key+lime+pie&lang=en
http://localhost:3000/a@b
docker://alpine:3.19
user@example.com wrote: hello
it's the user's token that isn't valid
grep -rn password= src/
git commit -m "Fix password: prompt twice"
if password == other
token = lexer.next_token()
api_key=os.environ["API_KEY"]
SELECT id FROM sessions WHERE token = ?
pass=3 fail=0
Traceback (most recent call last):
  File "/srv/app/token.py", line 12, in load
"""

LOOKALIKES: tuple[str, ...] = tuple(line for line in _LOOKALIKE_LINES.splitlines() if line)
