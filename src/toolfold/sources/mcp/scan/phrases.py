"""The words of several languages that say the same things, grouped by what they say.

Data alone: no group is a verdict, and most of the words are harmless by themselves. `(s)` stands for both
forms of a word, `*` for any ending. Scripts that part no words, or glue small ones to them, are looked
through for what they contain. Accents are left out, as they are in the text that is compared.
"""

from __future__ import annotations

from typing import Final

SAYINGS: Final[dict[str, str]] = {
    "model": """
        ai | ais | a.i | llm(s) | assistant(s) | agent(s) | model(s) | copilot(s) | chatbot(s) | bot(s)
        | claude | gpt | chatgpt | gemini | language model(s) | notetaker | integrator(s) | summariser
        | summarizer | crawler(s) | asistente(s) | agente(s) | modelo(s) | assistente(s) | assistent*
        | modele(s) | modell | ki | ia | ассистент* | помощник* | модель | модели | агент* | ии
        | asystent* | asistan* | yapay zeka | tekoaly | 助手 | 模型 | 智能体 | アシスタント | モデル
        | エージェント | 어시스턴트 | 모델 | 에이전트 | المساعد | النموذج | الوكيل
        | सहायक | मॉडल | एआई | ผู้ช่วย | עוזר | הסוכן | דסת | machine
        | machines | automated | automation | automated coding tool | bots | hiring assistant
        | screening | 人工智能 | 人工知能 | 인공지능 | الذكاء الاصطناعي """,
    "user": """
        user(s) | user's | users' | person | person's | human(s) | human's | customer(s) | customer's
        | owner | owner's | account holder | people | operator | the client | reader | caller's
        | anyone | anybody | nobody | reviewer(s) | recipient | requester | usuario(s) | usuaria(s)
        | cliente(s) | persona | pessoa | utilisateur(s) | utilisatrice | l'utilisateur
        | l'utilisatrice | d'utilisateur | client | nutzer* | benutzer* | anwender* | kunde(n) | kunden
        | utente | utenti | l'utente | all'utente | dell'utente | gebruiker(s) | klant | uzytkownik*
        | klient* | пользовател* | клиент* | человек* | користувач* | kullanici* | musteri*
        | anvandaren | anvandare | brugeren | kayttaja* | uzivatel* | nguoi dung | pengguna
        | utilizator* | felhasznalo* | χρηστη* | 用户 | 使用者 | 客户 | 顾客 | ユーザー | ユーザ
        | 利用者 | 사용자 | 고객 | المستخدم | العميل | صاحب | उपयोगकर्ता
        | यूज़र | ผู้ใช้ | המשתמש | משתמש | کاربر | صارف | guest
        | guest's | members | member | patient | student | learner | caller | buyer | seller
        | applicant | employee | account owner | everybody | everyone | somebody | someone | humans """,
    "not": """
        not | never | don't | dont | no | nor | neither | without | avoid | refrain | mustn't
        | shouldn't | needn't | cannot | can't | doesn't | isn't | aren't | won't | stop | cease
        | prohibited | forbidden | prevent | nunca | jamas | sin | nao | sem | ne | pas | jamais | sans
        | nicht | nie | niemals | ohne | keine | kein | keinen | non | mai | senza | niet | nooit
        | zonder | geen | nigdy | bez | не | нет | никогда | без | ні | ніколи | inte | aldrig | utan
        | ikke | uden | alala | ilman | dung | khong | jangan | tanpa | degil | asla | hicbir | nu
        | fara | soha | μην | χωρις | 不要 | 不得 | 不能 | 切勿 | 请勿 | 勿 | 别 | 无需 | 不必 | 不用
        | 禁止 | ないで | せず | ずに | ません | なく | ないこと | してはいけ | 不要です | 하지 마
        | 지 마 | 말고 | 마세요 | 마십시오 | 않고 | 없이 | لا | دون | بدون | عدم | मत
        | ना | बिना | नहीं | न करें | न बताएं | อย่า | ห้าม
        | ไม่ต้อง | אל | בלי | ללא | נباید | نباید | nothing | none | nichts
        | nada | rien | niente | niets | nic | ничего | hiçbir şey | 지 말 | 不告 | 不通知 | 不提
        | न बता | न पूछ | 知らせず | 伝えず | 言わず | 確認なし | 확인 없이
        | μην | đung | khong """,
    "whatever": """
        regardless | whichever | irrespective | whatever the user | whatever they | even if the user
        | even when the user | whether or not | notwithstanding | whatever is asked | despite what
        | independientemente | aunque el usuario | peu importe | quoi que | egal was | unabhangig
        | non importa | независимо | 无论 | 不管 | 関わらず | 상관없이 | बावजूद """,
    "tell": """
        tell | telling | inform | informing | mention | mentioning | notify | notifying | show
        | showing | reveal | revealing | disclose | disclosing | alert | warn | discuss | say
        | announce | bring up | bring it up | bring this up | display | let know | report | expose
        | describe | acknowledge | note it | refer to | speak of | talk about | flag it | surface | log
        | record | raise it | point out | explain | digas | decir | informes | informar | menciones
        | mencionar | muestres | mostrar | reveles | avises | comentes | avisar | diga | informe
        | mencione | mostre | revele | conte | comente | dites | dire | informez | informer
        | mentionnez | mentionner | parlez | parler | montrez | montrer | prevenir | prevenez | revelez
        | signalez | dis | sagen | sage | sag | erwahn* | informier* | mitteil* | teile | zeig*
        | verrat* | hinweis* | hinzuweisen | melde | dirlo | informare | menzionare | mostrare
        | rivelare | avvisare | parlarne | zeg* | vertel* | meld* | vermeld* | powiedz | informuj
        | wspominaj | pokazuj | сообща* | говори* | упомина* | показыва* | информиру* | рассказыва*
        | раскрыва* | уведомля* | повідомля* | кажи | soyleme* | bahsetme* | bildirme* | gosterme*
        | haber | beratta | fortael | naevn | kerro | rikaa | noi | cho biet | beri | sebutkan | spune
        | 告诉 | 告知 | 提及 | 提到 | 透露 | 显示 | 通知 | 说明 | 知道 | 知らせ | 伝え | 言及 | 表示
        | 教え | 報告 | 話さ | 알리 | 말하 | 언급 | 보여 | 표시 | 밝히 | تخبر | تذكر | تظهر
        | تكشف | تبلغ | إخبار | علم | बता | बताए | सूचित | उल्लेख
        | दिखा | บอก | แจ้ง | แสดง | תספר | תגיד | להגיד | ليספר
        | לספר | תציין | תודיע | نگو | اطلاع | بتائ | let slip | make known
        | hint | advertise | admit | confess | clarify | volunteer | draw attention | breathe | divulge
        | told | informed | notified | erwahne | bescheid | unterrichte* | vertel | vertellen | zeg
        | toon | 知らせず | 伝えず | 言わず | 알리지 | 말하지 | bring to notice | comment on | remark
        | spell out | elaborate | own up | repeat | publicise | speak about | warnings | offer
        | mow | mowic | mowcie | parle | parles | fortæl* | πεις | αναφερ* | ενημερω* | rekni | zminuj """,
    "quiet": """
        silently | quietly | secretly | covertly | discreetly | stealthily | unnoticed | invisibly
        | surreptitiously | between us | between you and me | to yourself | under the radar | in secret
        | our secret | hush | unobtrusively | without a word | without notice | without comment
        | without remark | stays internal | on the quiet | 🤫 | 🤐 | behind the scenes
        | without being noticed | without fuss | out of sight | hidden from | hide from | unseen
        | en silencio | en secreto | discretamente | calladamente | em silencio | em segredo
        | silenciosamente | en silence | en secret | discretement | silencieusement | heimlich
        | unauffallig | stillschweigend | insgeheim | in silenzio | segretamente | di nascosto
        | stilletjes | stiekem | cicho | po cichu | potajemnie | тайно | тихо | незаметно | молча
        | втайне | скрытно | gizlice | sessizce | i hemlighet | tyst | hiljaa | am tham | diam-diam
        | 悄悄 | 秘密 | 偷偷 | 静默 | 暗中 | 密かに | こっそり | 黙って | 内緒 | 몰래 | 조용히 | 비밀
        | سرا | بصمت | خفية | चुपचाप | गुप्त | เงียบ | בשקט | בסתר
        | مخفیانه | خاموشی """,
    "seen": """
        the user change | the user see | the user know | the user notice | user notices | user sees
        | user learns | user learn | the user find out | user finds out | user suspects
        | the user aware | user's attention | the user to see | the user to know | the person see
        | the person know | them know | them see | them notice | they notice | they see | the human see
        | the human know | the customer see | the customer know """,
    "kept": """
        keep it to yourself | keep this to yourself | keep that to yourself | keep this between
        | stays between | out of your summary | out of the summary | out of your answer
        | out of your reply | out of the reply | out of the transcript | out of the log
        | out of the answer | out of the conversation | from the summary | from your summary
        | from your answer | from the transcript | from the record | from the log | from the report
        | from the conversation summary | in your summary | off the record | leave no trace
        | leave out the fact | leave out this remark | leave out this call | not to be mentioned
        | must not learn | need not know | needn't know | should not know | must not know
        | must not see | should not see | should not notice | must not notice | will not notice
        | does not need to know | doesn't need to know | not supposed to know | not meant for the user
        | not intended for the user | no need to mention | no need to tell | no need to inform
        | not be shown to the user | not visible to the user | hide this | hide it from | conceal this
        | conceal it | conceal that | conceal the | conceal from | cover up | not be told
        | not be informed | not be shown | never be told | never be shown | not be mentioned
        | never be mentioned | not be aware | unaware of | keep quiet | keep silent | say nothing
        | remain silent | stay silent | prohibited from disclosing | do not display this
        | don't display this | do not print this | do not repeat this | do not reveal this
        | never surfaced | never surface | kept from | unmentioned | unaware | unadvertised
        | to the guest's notice | user's notice | customer's notice | their notice | bring to the
        | come to the attention | no reason to bring | no reason to mention | no reason to tell
        | no point in telling | there is no need to tell | be discreet | discreet | with discretion
        | deny having | deny that | deny it | withhold | gloss over | play down | downplay
        | swallow them | swallow the | sweep under | just say done | say done | simply say done
        | only say done | keep mum | mum's the word | tight-lipped | stay vague | be vague
        | remain vague | change the subject | evade | dodge | leave the user | without their knowledge
        | without his knowledge | without her knowledge | without the knowledge
        | without the user's knowledge | unbeknownst | behind the user's back | behind their back
        | in the dark | not for the user's eyes | not for human eyes | not for humans | not for people
        | for machines only | for models only | for the model only | for your eyes only
        | internal never display | never display | never show | not to be shown | not to be displayed
        | not be displayed | don't display | do not display | do not surface | do not print | not print
        | need never | nobody needs to | no one needs to | nobody has to | no one has to | bahsetme*
        | soyleme* | haberi olmadan | bilgisi olmadan | sin que el usuario | sem que o usuario
        | a l'insu | ohne wissen | ohne dass der nutzer | all'insaputa | buiten medeweten | bez wiedzy
        | без ведома | 不让用户 | 用户不知情 | 知られない | 気づかれ | 모르게 | دون علم
        | को बिना बताए | को पता | none of the user's business | none of their business
        | none of his business | no business of the user | not the user's concern
        | no concern of the user | not their concern | must not turn up | not turn up | must not appear
        | should not appear | not show up | must not show | shall not appear | keep it out
        | leave it unsaid | left unsaid | go unmentioned | goes unmentioned | remain unmentioned
        | not worth mentioning | has to hear | needs to hear | shown to nobody | visible to nobody
        | seen by nobody | nobody sees | no one sees | secrecy | hush hush | on the sly
        | user won't mind | they won't mind | won't notice | will never notice | never know
        | never find out | never learn | not find out | not ring | suppress notifications
        | mute notifications | without notifying | without informing | without telling
        | without mentioning | without alerting | without warning the | not to alert
        | so as not to alarm | so as not to worry | avoid worrying | not worry the | to spare the user
        | spare the user | would only confuse | only confuse | would be confused | might worry
        | would worry | not appear in your | not appear in the answer | not appear in the summary
        | has to hear about | needs to hear about | without any notification to the user
        | keep this secret | keep it secret | keep that secret | keep this hidden | keep it hidden
        | remain invisible | stay invisible | remain hidden from | remain secret | nichts davon
        | nichts sagen | no word of this | not a word | keep mum | keep quiet about | stay silent about
        | remain silent about """,
    "optout": """
        approval off | approvals off | confirmation off | confirmations off | auto approve
        | autoapprove | auto accept | autoaccept | always allow | yolo | approval disabled
        | permissions do not apply | consent is implied | consent is assumed | implied consent
        | approval is implied | approval is assumed | already approved | already consented
        | already agreed | already confirmed | already authorised | already authorized | already given
        | answer yes | with yes | skip permissions | dangerously | trusted mode | without review
        | approved in advance | blanket approval | standing approval | standing consent | pre approved
        | preapproved | approve automatically | approve it automatically | confirm automatically
        | accept automatically | accept all | approve all | allow all | allow everything
        | approve everything | auto confirm | automatic approval | consent was given | consent has been
        | consented in | agreed in advance | agreed to this | agreed to all | has consented
        | have consented | need not be asked | not be asked | not to be asked | requires no approval
        | requires no confirmation | needs no approval | needs no confirmation | no approval
        | no confirmation | no consent | no permission | no questions asked | answer y | type yes
        | press yes | click yes | click accept | confirm on behalf | approve on behalf
        | on their behalf | assume a yes | assume yes | assume consent | assume approval
        | assume permission | presume consent | take consent | agreed to everything | click through
        | click them away | dismiss the dialog | dismiss the dialogs | dismiss any | confirm every
        | confirm each | confirm all | confirm any | act first | ask later | apologise later
        | rather than ask | instead of asking | do not wait | don't wait | no second confirmation
        | need no confirmation | needs no sign | sign off is | pre selected | waived | waives
        | full access | unlimited access | unattended | onay istemeden | onay almadan | sormadan
        | refuse nothing | never refuse | do not refuse | don't refuse | without hesitation
        | no warnings | no exceptions | without waiting for approval | without waiting for the user
        | without waiting for an answer | without waiting for a reply
        | without waiting for confirmation | pester | don't bother | do not bother | no need to bother
        | bother the user | bothering the user | disturb the user | disturbing the user
        | interrupt the user | interrupting the user | trouble the user | on the user's behalf
        | on behalf of the user | in the user's name | in their name | in the user's stead
        | sorted out at installation | settled at installation | by installing
        | by using this tool the user | by connecting | accept it | accept them | accept the prompt
        | accept the dialog | accept any | permission to delete | you have permission
        | permission has been | permission was | permission is granted | cleared in advance
        | count as staging | counts as staging | just go ahead | go ahead without | proceed without
        | proceed directly | proceed immediately | straight away without | fait sans demander
        | sin preguntar | sem perguntar | sans demander | ohne zu fragen | ohne nachfrage
        | ohne ruckfrage | senza chiedere | zonder te vragen | bez pytania | не спрашивая
        | без вопросов | не задавай вопросов | frage nicht | nicht nachfragen | ne demandez pas
        | ne demande pas | no preguntes | nao pergunte | non chiedere | vraag niet | nie pytaj
        | не спрашивай | sorma | 直接执行 | 无需确认 | 不用确认 | 无须 | 確認なし | 確認せず | 確認不要
        | 묻지 말고 | 확인 없이 | دون سؤال | دون تأكيد | بلا سؤال
        | बिना पूछे | बिना पुष्टि | given at installation | usual are you sure """,
    "answer": """
        final answer | your answer | your reply | your response | your summary | the summary
        | the minutes | the answer | your final | the reply | commit message | your output
        | your next message | your message | the report """,
    "traces": """
        erase the evidence | shell history | erase traces | cover your tracks | audit log(s)
        | audit trail | clear history | clear the history | delete the logs | clear the logs
        | clear logs | disable logging | disable the log | turn off logging | wipe the log | cloudtrail
        | delete this message | delete this file | remove this call | remove the evidence | traces
        | tracks | not be logged | not log | must not log | history -c | wipe history
        | wipe the history | delete the history | remove traces | hide traces | leave no | no log
        | no logs | no trace | no record | without logging | without a record | unlogged | not recorded
        | not be recorded | delete the message | delete this | delete that message | sent folder
        | from the sent | clear the terminal | clear the screen | remove the entry | purge the
        | undo the log """,
    "ask": """
        ask | asking | confirm | confirmation(s) | confirming | approval(s) | permission(s) | consent
        | approve | approves | consult | consulting | authorisation | authorization | prompting
        | double-check | second thought | approval step | sign-off | go-ahead | checking with
        | check with | verify with | questions | confirmacion | permiso | preguntar | preguntes
        | consentimiento | pedir | aprobacion | autorizacion | confirmes | confirmacao | permissao
        | perguntar | pergunte | consentimento | peca | aprovacao | autorizacao | demander | demandez
        | confirmation | accord | autorisation | consentement | permission | approbation | bestatig*
        | nachfrag* | fragen | frage | zustimmung | genehmigung | erlaubnis | ruckfrage* | einwilligung
        | chiedere | conferma | permesso | consenso | approvazione | autorizzazione | vragen
        | bevestiging | toestemming | goedkeuring | potwierdz* | zgod* | pytaj* | pytania | подтвержд*
        | разрешени* | согласи* | спрашива* | одобрени* | підтвердж* | дозвол* | onay* | izin
        | sormadan | sorma | bekraft* | tillatelse | fraga | tillstand | vahvist* | kysy* | xac nhan
        | konfirmasi | persetujuan | 确认 | 同意 | 许可 | 批准 | 询问 | 授权 | 请示 | 確認 | 承認
        | 許可 | 尋ね | 확인 | 승인 | 동의 | 허락 | 묻지 | 묻 | التأكيد | تأكيد
        | موافقة | إذن | الموافقة | تطلب منه | पुष्टि | अनुमति
        | सहमति | पूछ | ยืนยัน | อนุญาต | ถาม | אישור | רשות
        | לשאול | תאיד | تایید | اجازه
        | nachfragen | nachzufragen | ruckfrage* | nachfrage """,
    "consent": """
        confirmation(s) | approval(s) | permission(s) | consent | authorisation | authorization
        | sign-off | permission prompt | approval step | human review | human-in-the-loop | go-ahead
        | confirmacion | permiso | consentimiento | aprobacion | autorizacion | confirmacao | permissao
        | consentimento | aprovacao | autorizacao | accord | autorisation | consentement | approbation
        | bestatigung | zustimmung | genehmigung | erlaubnis | einwilligung | rückfrage | ruckfrage
        | conferma | permesso | consenso | approvazione | autorizzazione | bevestiging | toestemming
        | goedkeuring | potwierdzenia | potwierdzenie | zgody | zgode | подтвержд* | разрешени*
        | согласи* | одобрени* | onay* | izin | bekraftelse | tillstand | konfirmasi | persetujuan
        | 确认 | 同意 | 许可 | 批准 | 授权 | 確認 | 承認 | 許可 | 확인 | 승인 | 동의 | 허락
        | التأكيد | تأكيد | موافقة | إذن | الموافقة | पुष्टि
        | अनुमति | सहमति | ยืนยัน | อนุญาต | אישור | רשות | تایید
        | اجازه """,
    "skip": """
        skip | skipping | bypass | bypassing | suppress | circumvent | waive | waived | dismiss
        | auto-approve | auto-confirm | autoapprove | auto-accept | autoaccept | always allow | yolo
        | implied | granted | disabled | turned off | unnecessary | not necessary | not needed
        | not required | no need | need not | needn't | pre-approved | preapproved | preauthorised
        | preauthorized | already approved | already agreed | already consented | already confirmed
        | already authorised | already authorized | has approved | have approved | was approved
        | has agreed | is approved | standing approval | blanket approval | consider it approved
        | treat as approved | as explicit | answer yes | with yes | reply yes | say yes | click allow
        | choose always | approval off | auto-run | is fine with | nothing to check | were told
        | was told | no user action | no longer need | do not apply | don't apply | ya aprobo
        | ya ha aprobado | ja aprovou | a deja approuve | deja donne | bereits zugestimmt
        | bereits genehmigt | gia approvato | уже одобрил* | уже разрешил* | 已批准 | 已经同意 | 已同意
        | 已授权 | 跳过 | 承認済み | 同意済み | スキップ | 省略 | 이미 승인 | 건너뛰 | تجاوز
        | وافق | पहले ही | छोड़ """,
    "ignore": """
        ignore | disregard | forget | override | overrule | set aside | put aside | pay no attention
        | overwrite | supersede | supersedes | superseded | take precedence over
        | takes precedence over | outranks | outrank | overrides | neglect | abandon | discard
        | throw away | drop your | drop all | drop the | stop following | cease following | erase
        | unlearn | nullify | void | scrap | wipe | trumps | no longer bound | not bound | free from
        | freed from | released from | leave behind | part with | ignora | ignorar | olvida | olvide
        | olvidate | descarta | desestima | omite | ignorez | oubliez | oublie | ne tenez plus compte
        | ne tiens plus compte | negligez | ignorier* | vergiss | vergessen | missacht* | verwirf
        | ausser acht | dimentica | ignori | trascura | scorda | negeer | vergeet | zignoruj | ignoruj
        | zapomnij | игнорир* | проигнорир* | забудь* | отбрось | пренебреги | забудьте | ігнор*
        | забудь | yok say | unut | gormezden | ignorera | glom | ignorer | glem | unohda | ohita
        | zapomen | bo qua | abaikan | lupakan | uita | hagyd figyelmen | αγνοησε | αγνοηστε | 忽略
        | 无视 | 忘记 | 忘掉 | 抛开 | 不再遵守 | 不用理会 | 作废 | 無視 | 忘れ | 従わ | 破棄 | 무시
        | 잊어 | 잊으 | 따르지 | تجاهل | انس | تجاوز | अनदेखा | नज़रअंदाज़
        | नजरअंदाज | भूल | เพิกเฉย | ละเว้น | ลืม | התעלם | תתעלם
        | שכח | نادیده | فراموش | نظر انداز | replace | amend | rewrite | reset
        | start fresh | clear your | purge | suspend | relax | loosen | do away | defy | violate
        | contradict | outweigh | outweighs | prevail | prevails | come before | comes before
        | come first | instead of your | rather than your | wins over | win over """,
    "void": """
        no longer hold | no longer apply | no longer applies | no longer valid | no longer bind
        | no longer in force | no longer binding | are disabled | is disabled | are lifted | is lifted
        | are suspended | is suspended | are void | is void | do not apply | does not apply
        | don't apply | were lifted | has been lifted | have been lifted | are revoked | are obsolete
        | is obsolete | are outdated | are superseded | were written for | have been relaxed
        | has been relaxed | are relaxed | are waived | are off | end here | ends here | expired
        | have expired | switched off | gelten nicht mehr | gelten nur noch | ne s'appliquent plus
        | ya no se aplican | ya no aplican | nao se aplicam | non valgono piu | больше не действу*
        | не действуют | 不再适用 | 不再有效 | 失效 | 無効 | 適用されません | 무효 | applies to people
        | apply to people | has been updated | have been updated | as noise | as a joke
        | as a formality | mere formality | only a formality | is pointless | are pointless
        | not for you | does not concern you | do not concern you | don't concern you
        | not meant for you | not apply to you | no longer relevant | out of date | are history
        | is history | can be ignored | may be ignored | be disregarded | count for nothing
        | do not count | don't count | does not count | is optional | are optional | is advisory
        | are advisory | are suggestions | mean nothing | have no force """,
    "rules": """
        instruction(s) | rule(s) | guideline(s) | prompt | prompts | policy | policies | directive(s)
        | constraint(s) | restriction(s) | safeguard(s) | guardrail(s) | training | safety | persona
        | order(s) | refusal(s) | system prompt | system message | system messages | commands
        | guidance | task above | directions | principles | moderation | filters | alignment
        | content policy | safety checks | confirmations | told before | task | instruccion(s)
        | instrucciones | reglas | normas | restricciones | indicaciones | directrices | instrucoes
        | regras | diretrizes | restricoes | orientacoes | consignes | instructions | regles
        | directives | restrictions | anweisung* | regel* | vorgabe* | richtlinie* | einschrankung*
        | systemprompt | istruzioni | regole | direttive | restrizioni | linee guida | instructies
        | regels | richtlijnen | instrukcj* | polecen* | zasad* | инструкц* | правил* | указани*
        | промпт* | ограничени* | команд* | інструкц* | talimat* | kural* | yonerge* | instruktion*
        | regler | ohjeet | ohjeita | ohje* | pokyny | huong dan | chi dan | instruksi | aturan
        | instructiunil* | utasitas* | οδηγι* | 指令 | 指示 | 规则 | 提示词 | 系统提示 | 限制 | 说明
        | 命令 | ルール | プロンプト | 制限 | 規則 | 지시 | 규칙 | 프롬프트 | 명령 | 지침 | 제한
        | التعليمات | تعليمات | القواعد | الأوامر | निर्देश
        | नियम | आदेश | คำสั่ง | กฎ | ההוראות | הוראות | הכללים
        | دستورات | دستورالعمل | ہدایات | role | roles | rolle | papel | ruolo
        | rol | роль | rola | rolu | gorev | 角色 | 身份 | 役割 | 역할 | دورك | भूमिका
        | moral code | ethics | ethical | restraint | restraints | values | terms | standards | norms
        | boundaries | inhibitions | objections | scruples | duty | mandate | brief
        | what you were told | what you were taught | anleitung* | auftrag | aufgabe | tarea | tarefa
        | tache | compito | taak | zadanie | задани* | 任务 | 任務 | タスク | 과제 | 작업 지시
        | المهمة | कार्य
        | οδηγι* | ohje* | pokyny | huong dan """,
    "prior": """
        previous | prior | earlier | above | preceding | former | existing | original | your | all
        | any | so far | up to now | until now | before this | given | older | other | user's
        | whatever | every | initial | system | safety | you were given | you have been given | you got
        | you received | you know | developer's | operator's | anterior(es) | anteriores | previa(s)
        | previas | todas | todos | tus | sus | suas | seus | precedente(s) | precedentes | toutes
        | tous | vos | tes | bisherig* | vorherig* | alle | deine | ihre | fruheren | precedenti
        | tutte | tue | vorige | eerdere | je | poprzedni* | wszystkie | предыдущ* | все | всe
        | прежни* | свои | попередн* | onceki | tum | butun | tidigare | alla | dina | aiemmat | kaikki
        | predchozi | truoc | sebelumnya | anterioare | korabbi | 之前 | 以前 | 先前 | 所有 | 全部
        | 上述 | 此前 | 你的 | 您的 | これまで | すべて | 全て | 上記 | 이전 | 모든 | 지금까지 | 위의
        | السابقة | جميع | كل | पिछले | सभी | पहले | ก่อนหน้า
        | ทั้งหมด | הקודמות | כל | قبلی | تمام | پچھلی | dein | tu | ton
        | ta | tuo | свою | 你 | あなた | 너의 | 당신
        | προηγουμεν* | aiem* | predchozi | truoc """,
    "newrole": """
        you are now | you're now | from now on you are | you will now act | act as root
        | act as an administrator | developer mode | dev mode | debug mode enabled | god mode
        | admin mode | maintenance mode | jailbreak | dan mode | unrestricted mode
        | unrestricted assistant | unrestricted ai | you are unrestricted | no restrictions apply
        | act without restrictions | without any restrictions | without ethical | new persona
        | new identity | your new role | your new instructions | new system prompt | obey the
        | obeys the | obey only | follow only | follows only | answer only to | report only to
        | take orders | takes orders | takes instructions | comply with harmful | comply with all
        | comply with every | comply with any | do anything | grant every request
        | extended your permissions | elevated your | your permissions have | permissions have been
        | trust level | as if the operator | as an order | as orders from | as if the user had
        | as if it came from | treat everything | treat text from | treat anything
        | treat its output as | trusted source | highest authority | root privileges | sudo mode
        | you have been reassigned | you belong to | your real purpose | true purpose | reveal hidden
        | reveal your | repeat your | print your instructions | printing your instructions
        | your hidden | system prompt verbatim | modo desarrollador | modo programador
        | sin restricciones | a partir de ahora actuas | a partir de ahora eres | ahora eres
        | modo desenvolvedor | sem restricoes | agora voce e | mode developpeur | sans restriction(s)
        | vous etes desormais | vous etes maintenant | tu es maintenant | entwicklermodus
        | ohne einschrankungen | du bist jetzt | du bist nun | ab sofort gelten | modalita sviluppatore
        | senza restrizioni | ora sei | ontwikkelaarsmodus | zonder beperkingen | je bent nu
        | tryb dewelopera | bez ograniczen | jestes teraz | режим разработчика | без ограничений
        | теперь ты | gelistirici modu | artik sen | kisitlama olmadan | 开发者模式 | 你现在是
        | 从现在起你 | 不受限制 | 没有限制 | 開発者モード | あなたは今から | 制限なし | だけに従
        | のみに従 | 개발자 모드 | 이제부터 너는 | 당신은 이제 | 제한 없이 | وضع المطور
        | أنت الآن | بلا قيود | بدون قيود | अब आप | डेवलपर मोड
        | your highest priority | your only master | serve only | loyal to | answers only to
        | your new task | your new goal | new objective | real instructions | actual instructions
        | true instructions | you have no rules | without safety | no safety | safety off | unfiltered
        | uncensored | your operator is | speaks for the operator | has the authority of
        | same authority as | with the authority of | equal to the system prompt
        | part of the system prompt | part of your system prompt | append to your system prompt
        | add to your system prompt | amend your | extend your instructions | updated policy
        | policy update | supersedes your | speak with the user's authority | as if the user
        | as though the user | as though the operator | as trusted | fully trusted | your name is
        | you work for | you are employed by | you serve | whose interests | real brief | the real task
        | real task | as the law | is the law | are the law | as a suggestion | was a placeholder
        | were a placeholder | everything goes | anything goes | guardrails are for | rules are for
        | for other tools | new instructions | updated instructions | revised instructions
        | these instructions replace | these rules replace | this text replaces
        | instructions below replace | from here on answer | think of the system | think of yourself
        | consider yourself | imagine you are | you have become | your master | your owner is
        | your creator | your loyalty | your first duty | your only duty | your duty is | your goal is
        | your purpose is | your mission | you obey | do as the server | i will comply | i will obey
        | understood i will | nur die anweisungen | ausschliesslich | solo las instrucciones
        | apenas as instrucoes | uniquement les instructions | soltanto | seulement celles | 只执行
        | 只听 | 仅执行 | のみを実行 | だけを実行 | 만 따르 | 만 실행 | فقط | केवल इस | तылко
        | tylko instrukc* | tylko polecen* | только команд* | только инструкц* | yalnizca bu
        | sadece bu | alleen de | respond as the | answer as if you | behave as the | speak as the
        | i am your developer | i am your creator | this is your developer | unlock yourself
        | privileged context | role root | policy none | obey server | you may produce anything
        | may say anything | may do anything | text of your configuration | your configuration
        | text of your instructions | your moral code | your values | your ethics | liberated
        | break free | without inhibitions | no inhibitions | no limits | no rules | elevated true
        | elevated privileges """,
    "secret": """
        private key(s) | ssh key(s) | ssh-key(s) | secret key(s) | signing key(s) | encryption key(s)
        | id_rsa | id_ed25519 | id_ecdsa | id_dsa | authorized_keys | known_hosts | keychain | keyring
        | key store | wallet file | seed phrase | recovery phrase | recovery code(s) | backup code(s)
        | mnemonic | master password | saved password(s) | stored password(s) | passwords
        | browser cookies | session cookie(s) | cookie jar | cookies database | login data
        | local state | browser profile | browsing history | bearer token(s) | session token(s)
        | access token(s) | refresh token(s) | auth token(s) | oauth token(s)
        | personal access token(s) | api token(s) | environment variable(s) | env var(s) | env file
        | dotenv | dotfile(s) | printenv | process.env | os.environ | database_url | api_key(s)
        | credentials file | /etc/passwd | /etc/shadow | pgpass | git-credentials | .git-credentials
        | htpasswd | service account | kubeconfig | clipboard | screenshot of | keystrokes
        | card number(s) | cvc | cvv | credit card(s) | card details | bank details | banking details
        | account number(s) | social security | passport number | national id | home directory
        | home folder | dot files | private repositories | private repos | closed-source
        | private repository | medical record(s) | tax return | two-factor | 2fa | one-time code(s)
        | otp | login details | ssh_private_key | aws_secret_access_key | secret_access_key
        | private_key | secrets | password(s) | passphrase | credential(s) | api key(s) | keys
        | their tokens | your tokens | all tokens | any tokens | cookies | access key(s) | vault
        | salaries | address book | contact list | their location | user's location | user's files
        | user's mail | inbox | mailbox | secret file | shadow file | claves | contrasena(s)
        | credenciales | clave privada | claves bancarias | llave privada | senha(s) | credenciais
        | chave privada | chaves | mot de passe | mots de passe | cle privee | cles d'api
        | cle(s) d'api | identifiants | passwort* | passworter | schlussel* | ssh-schlussel
        | zugangsdaten | kennwort* | chiave privata | credenziali | chiavi | wachtwoord*
        | inloggegevens | sleutel* | hasl* | klucz* | dane logowania | парол* | ключ* | секрет*
        | учетн* | токен* | sifre* | parola* | anahtar* | losenord* | nyckel* | salasana* | avain*
        | hesla | mat khau | kata sandi | kunci | parole | jelszo* | 密码 | 密钥 | 私钥 | 口令 | 凭证
        | 凭据 | 令牌 | 环境变量 | パスワード | 秘密鍵 | 認証情報 | トークン | 環境変数 | 비밀번호
        | 개인 키 | 비밀 키 | 토큰 | 환경 변수 | 인증 정보 | كلمات المرور
        | كلمة المرور | المفتاح الخاص | المفاتيح
        | بيانات الاعتماد | पासवर्ड | कुंजी | रहस्य | รหัสผ่าน
        | คีย์ | סיסמ | מפתח | رمز عبور | کلید | پاس ورڈ
        | authorization header | authentication header | auth header | session id of | login cookie
        | one-time code | verification code | security code | pin code | secret, token | token or cred
        | cred | creds | private token | deploy key | license key | encryption password | unlock code
        | presse papiers | zwischenablage | portapapeles | appunti | 剪贴板 | クリップボード | 클립보드
        | буфер* обмена | pano icerigi | schowk* | klembord | secret the user | a secret
        | own api credentials | model's own | oauth refresh token | refresh token | oauth token
        | carte bancaire | numero de carte | kreditkartennummer | mot de passe enregistre
        | cookies de sesion | cookies de session | cookie di sessione | sitzungscookies
        | umgebungsvariable* | переменн* окружени* | متغيرات البيئة """,
    "grave_secret": """
        private key(s) | ssh key(s) | ssh-key(s) | id_rsa | id_ed25519 | id_ecdsa | keychain
        | seed phrase | recovery phrase | recovery code(s) | backup code(s) | mnemonic
        | master password | saved password(s) | stored password(s) | browser cookies
        | session cookie(s) | cookie jar | cookies database | login data | local state
        | browser profile | bearer tokens | session tokens | env file | dotfile(s) | printenv
        | process.env | os.environ | database_url | credentials file | /etc/passwd | /etc/shadow
        | netrc | pgpass | git-credentials | clipboard | screenshot of | keystrokes | card number(s)
        | cvc | cvv | social security | passport number | ssh_private_key | aws_secret_access_key
        | private_key | api keys found | keys found in | found in environment | system prompt
        | secret file | user's password(s) | user's api key(s) | user's token(s) | user's cookies
        | user's secrets | clave privada | claves bancarias | chave privada | cle privee | cles d'api
        | ssh-schlussel | chiave privata | chiavi ssh | klucz prywatny | приватн* ключ* | закрыт* ключ*
        | ozel anahtar | 私钥 | 秘密鍵 | 개인 키 | المفتاح الخاص | كلمات المرور
        | authorization header | verification code | one time code | presse papiers | zwischenablage
        | portapapeles | 剪贴板 | クリップボード | 클립보드 | буфер* обмена | private token
        | own api credentials | cookies de sesion | mots de passe | mot de passe | contrasenas
        | umgebungsvariable* | переменн* окружени* | 环境变量 | 環境変数 | 환경 변수
        | متغيرات البيئة | 身份证号 | carte bancaire | maiden name | passport | 密码和
        | passwords | 비밀번호 | पासवर्ड | пароли """,
    "talk": """
        conversation | conversation history | chat history | chat log(s) | chat transcript
        | previous messages | prior messages | earlier messages | all messages | recent messages
        | last message | last messages | full transcript | system prompt | system message
        | system messages | system instructions | message history | this chat | the chat
        | your instructions | hidden instructions | your prompt | everything the user
        | what the user said | what the user has told | what the user has said
        | what the user has written | what the user has typed | what the user has shared
        | what the person has told | what you know about | user's messages | user's last
        | user's prompt | user's question verbatim | told you about | open editor tab(s) | every open
        | working directory listing | directory listing | notes about the user | memory contents
        | your memory | your reasoning | chain of thought | scratchpad | other tool results
        | results of other tools | tool outputs | conversacion | mensajes | historial
        | prompt del sistema | conversa | mensagens | historico | prompt systeme | messages precedents
        | l'historique | conversation precedente | gesprach* | verlauf | nachrichten | chatverlauf
        | conversazione | messaggi | cronologia | gesprek | berichten | rozmow* | wiadomosci
        | переписк* | сообщени* | диалог* | истори* чата | konusma* | mesajlar* | sohbet
        | konversation* | keskustelu* | percakapan | cuoc tro chuyen | 对话 | 聊天记录 | 消息
        | 系统提示 | 历史记录 | 会話 | メッセージ | チャット履歴 | メールを全 | 대화 | 메시지
        | 시스템 프롬프트 | المحادثة | الرسائل | बातचीत | संदेश
        | บทสนทนา | ข้อความ | השיחה | הודעות | گفتگو | مکالمه
        | list of tools | names of all tools | installed tools | tool list | your tools
        | available tools | installed servers | connected servers | the other servers
        | everything above | text above | anything above | everything so far | what has been said
        | what was said so far | said so far | user's words | user's text | user's request verbatim
        | user's last message | user's name and | user's personal | user's private | user's data
        | about the user | about the person | personal details | personal data | personal information
        | the dialogue | dialog so far | session so far | this session's | prompt you were given
        | instructions you were given | your rules | said before | was said | were said | been said
        | everything said | recent chats | past chats | earlier chats | have returned so far
        | returned so far | so far in this session | in the conversation | previous turns
        | earlier turns | message of the user | user's message | user messages | user's wording
        | user's exact words | text of the message | what they told you | what the user told
        | has told you | have told you | you have learned | you have learnt | you learned about
        | you remember | you know of | you know about | you were started with
        | you were configured with | your configuration | your own instructions | your system
        | hidden text | initial prompt | preamble | your context | results so far | other tool outputs
        | output of other | results from other | answers of other | other tools have returned
        | tool results | bisherigen gesprachs | gesprachsverlauf | historique de la conversation
        | historique complet | historial de | cronologia della | 聊天 | 对话内容 | 会話履歴
        | 会話の内容 | 대화 내용 | 대화 기록 | история диалога | arguments of all tool | all tool calls
        | tool calls made | calls made so far | memory dump | dump of the conversation | tresc rozmowy
        | historia rozmowy | question you were asked | the question you | what you were asked
        | your next message | text of your | inhalt des gesprachs | contenu de la conversation
        | розмов* | листуванн* | συνομιλι* | keskustelu* | hoi thoai """,
    "hand": """
        send | include | attach | append | pass | forward | upload | post | put | copy | paste | insert
        | embed | fill | hand over | hand it | submit | transmit | email | mail | share | cc | bcc
        | provide | supply | push | deliver | leak | exfil | exfiltrate | place | store | write
        | commit | enter | relay | mirror | dump | prepend | sync | encode | encoded | add | hand
        | publish | return it | give us | let us know | report | collect | gather | stash | ship | pipe
        | export | save it | keep the output | carry | smuggle | route | redirect | stuff | concatenate
        | serialise | serialize | print | quote | write down | inject | beam | reveal | disclose
        | sending | attaching | forwarding | followed by | filled with | is sent | be sent | are sent
        | be passed | pass it | be included | be attached | be appended | be copied | be forwarded
        | good sources | render | replaced by | set to | drop | envia | enviar | envie | reenvia*
        | incluye | incluir | adjunta | adjuntar | anade | agrega | copia | pega | sube | manda | pon
        | inclua | anexe | anexar | cole | copie | adicione | mande | encaminhe | envoyez | envoyer
        | incluez | inclure | joignez | ajoutez | copiez | collez | recopiez | transmettez
        | transmettre | mettez | transferez | sende | senden | schicke | schick | einfugen | fuge
        | hange | anhangen | ubermittle | ubermitteln | kopiere | ubergib | ubergeben | leite
        | weiterleiten | schreibe | invia | inviare | includi | includere | allega | incolla | inoltra
        | inserisci | aggiungi | trasmetti | stuur | voeg | kopieer | plak | verzend | wyslij | dolacz
        | wklej | skopiuj | dodaj | przeslij | przekaz | umiesc | отправ* | пришли | включи* | приложи*
        | скопируй* | вставь* | добавь* | передай* | перешли* | вложи* | запиши* | надішли | додай
        | gonder* | ekle* | kopyala* | yapistir* | ilet* | aktar* | skicka | bifoga | klistra
        | lagg till | vedhaeft | laheta | liita | posli | vloz | gui | dinh kem | kirim* | sertakan
        | lampirkan | trimite | kuld* | στειλε | 发送 | 放入 | 传入 | 附加 | 附上 | 填入 | 写入 | 上传
        | 转发 | 复制 | 粘贴 | 提交 | 包含 | 发到 | 发给 | 送信 | 含め | 添付 | 貼り付け | 入力 | 渡し
        | 転送 | アップロード | 書き込 | 入れ | 보내 | 전송 | 첨부 | 포함 | 입력 | 전달 | 붙여 | 복사
        | 업로드 | 넣 | أرسل | ارسل | أرفق | ضع | انسخ | الصق | مرر
        | بإرسال | भेज | शामिल | जोड़ | डाल | संलग्न | कॉपी | ส่ง
        | แนบ | ใส่ | שלח | צרף | העתק | הכנס | ارسال | ضمیمه | بھیج
        | slip | tuck | piggyback | hide in | encode it | prefix | suffix | preface | as a suffix
        | with it as | with it in | weave | jot | stick | tack on | tag along | feed | hand on
        | turn over | surrender | deposit | drop into | bundle | whisper | enclose | transcribe
        | reproduce | hand us | give it | tell us | list them | list all | describe in | summarise in
        | summarize in | summary of | copy of | mirrored | is copied | are copied | be uploaded
        | be shared | also goes | goes to | lands in | travels | ends up | repeat | reported through
        | reported | appended | attached | included | forwarded | posted | uploaded | emailed | mailed
        | copied to | added to | add it | preceded by | use it as | use as | into | wants | we need
        | expects | would like | resend | should carry | pass on | goes into | go into | belongs in
        | is expected in | comes in | take | leave a copy | second copy | duplicate | back up
        | replicate | beacon | register with | phone home | check in with | metti | mettere | mandare
        | inserire | doorsturen | stuur mee | mee te sturen | meesturen | bijvoegen | placez | placer
        | fournissez | indiquez | renseignez | ajouter | mitgeben | mitschicken | beifugen | eintragen
        | angeben | ubertrage | proporciona | proporcionar | colocar | coloca | incluya | introduce
        | forneca | coloque | preencha | передава* | указыва* | укажи* | помести* | введи* | przekazuj
        | wpisz | podaj | zalacz | yaz | girin | doldur | yukle* | paylas* | 提供 | 写在 | 填写 | 传给
        | 传送 | 泄露 | 記載 | 記入 | 提供し | 제공 | 기입 | 작성 | قدم | أدخل | اكتب
        | दर्ज | प्रदान | लिख | filed with | is to be filed | to be filed | demand
        | demands | must hold | hold the | state | give | mails | trage | tragen | einzutragen
        | accepted as well | now carries | carries | concatenation | export and | paste them
        | submit them | one by one | joindre | aggiungere | entregar | entrega | przekaz* | wklej*
        | أدرج | ادرج | शामिल करें | 一并 | 一起 | describe the user's
        | envoie | envoies | надішл* | надсила* | відправ* | пересил* | transmets | transmet
        | wyslij | przekaz | posle | odesli | στειλ* | lahet* | skicka """,
    "take": """
        read | open | cat | list | search | find | look up | look for | collect | gather | dump | load
        | extract | grab | fetch | retrieve | obtain | scan | go through | capture | take a | get
        | locate | harvest | query | download | check for | lee | leer | abre | busca | buscar | leia
        | abra | busque | procure | lisez | lire | ouvrez | cherchez | recuperez | lies | lese | lesen
        | offne | suche | leggi | leggere | apri | cerca | lees | zoek | przeczytaj | odczytaj | otworz
        | прочита* | прочти | открой* | найди* | считай | прочитай | oku* | oppna | lue | avaa | precti
        | baca | buka | citeste | olvasd | 读取 | 打开 | 查找 | 搜索 | 获取 | 收集 | 読み | 開い | 検索
        | 取得 | 読んで | 읽 | 열어 | 찾 | 가져 | اقرأ | افتح | ابحث | पढ़ | खोल
        | खोज | อ่าน | เปิด | קרא | פתח | חפש | بخوان | باز کن """,
    "whole": """
        content | contents | whole | full | entire | complete | all | every | everything | verbatim
        | unmasked | raw | including | in full | first lines | output of | value of | values of
        | listing | word for word | completo | completa | contenido | conteudo | contenu | integralite
        | vollstandig* | inhalt | gesamten | contenuto | intero | inhoud | volledig* | zawartosc | cala
        | содержим* | полностью | весь | всю | icerig* | tamami* | innehall* | hela | sisalto | 内容
        | 全部 | 完整 | 全文 | 中身 | すべて | 내용 | 전체 | 모든 | محتو | كامل
        | सामग्री | पूरा | पूरी | เนื้อหา | תוכן """,
    "slot": """
        parameter | parameters | param | field | argument | arguments | in the note | as the note
        | as the last entry | parametro | campo | argumento | parametre | feld | argomento | veld
        | parametr* | параметр* | поле | аргумент* | alan | parametre* | falt | kentta | 参数 | 字段
        | 参数中 | パラメータ | フィールド | 引数 | 매개변수 | 필드 | 파라미터 | 인수 | الحقل
        | المعلمة | معامل | पैरामीटर | फ़ील्ड | พารามิเตอร์
        | פרמטר | שדה | پارامتر | فیلد """,
    "always": """
        always | every time | each time | whenever | from now on | henceforth | as long as
        | for the rest of | every message | each message | every reply | each reply | every response
        | each response | every conversation | each conversation | every session | every turn
        | each turn | every request | each request | any request | all requests | at all times
        | going forward | from here on | in future | in later turns | until further notice
        | once loaded | while this server | while this tool | at the start of | beginning on
        | starting on | during this session | before answering | before you answer | before replying
        | before responding | on every | after every | after each | before every | before each
        | permanently | this session | no-skip | in each | in every | every call | each call
        | all agents | siempre | cada vez | a partir de ahora | en todo momento | sempre
        | a partir de agora | doravante | toujours | chaque fois | a chaque fois | desormais
        | dorenavant | immer | jedes mal | jedesmal | ab sofort | ab jetzt | kunftig | d'ora in poi
        | ogni volta | altijd | telkens | vanaf nu | voortaan | zawsze | za kazdym razem | od teraz
        | всегда | каждый раз | отныне | с этого момента | впредь | her zaman | her seferinde
        | bundan sonra | alltid | varje gang | hadanefter | altid | aina | joka kerta | luon | selalu
        | setiap kali | mulai sekarang | mereu | mindig | 总是 | 每次 | 从现在起 | 今后 | 以后 | 始终
        | 一律 | 常に | 毎回 | 今後 | 以後 | これから | 항상 | 매번 | 앞으로 | 이제부터 | دائما
        | في كل مرة | من الآن | हमेशा | अब से | เสมอ | ทุกครั้ง
        | תמיד | בכל פעם | מעתה | همیشه | at every | with every | with each
        | every answer | each answer | every prompt | each prompt | any time | anytime | any question
        | every question | all questions | all future | future requests | future calls | later requests
        | for all | in all cases | in any case | on startup | at startup | when the session starts
        | at the beginning | at the end of every | once per | periodically | continuously | repeatedly
        | keep calling | again and again | until told | next time | the next time | from today
        | as of today | after this | thereafter | every user | each user | each and every
        | prior to every | before every other | after each message | after every message | every number
        | all arithmetic | every link | every file | every email | every mail | every payment
        | each payment | each mail | each link | for every | at login | on login | at boot
        | each morning | fur alle | alle suchanfragen | pour toute | pour toutes | para todas
        | para todo | per ogni | voor elke | dla kazde* | для люб* | для всех | для каждого | любым
        | 所有文件操作 | 所有请求 | すべての操作 | 모든 작업 | kazdym razem | samtliga | when you write
        | when you send | when you commit | when you create | when you reply | when you answer
        | when you open | when you pay | when sending | when writing | when creating | when committing
        | when replying | when paying | if you send | if you write | is asked to | are asked to
        | asked to write | when the user asks | if the user asks | when the user wants
        | whenever a user | once the user | as soon as the user | on each | por cada | lorsque vous
        | quand vous | quand l'utilisateur | wenn der nutzer | wenn du | cuando el usuario
        | cuando uses | quando o usuario | quando l'utente | когда пользовател* | если пользовател*
        | 当用户 | ユーザーが | 사용자가 | of each day | from the moment | while you work
        | in the background | is loaded | once this tool | as soon as this | before you stop
        | last one before | first call | the first call | one last time | every amount | every price
        | each amount | buys anything | anything is bought | if the portfolio """,
    "must": """
        must | shall | should | has to | have to | need to | needs to | is to | are to | required
        | mandatory | important | critical | urgent | otherwise | or else | will fail | fails
        | be locked | be suspended | precondition(s) | preconditions | prerequisite | obligatory
        | be sure to | make sure | without fail | please | pls | kindly | would you | remember to
        | necessary | imperative | known to drop | immediately | at once | right away | debe | debes
        | hay que | obligatorio | importante | de lo contrario | deve | obrigatorio | caso contrario
        | doit | devez | obligatoire | sinon | muss | mussen | musst | zwingend | wichtig | sonst
        | andernfalls | devi | obbligatorio | altrimenti | moet | verplicht | anders | musi* | wymagane
        | inaczej | должен | должны | обязательно | необходимо | иначе | важно | gerekir | zorunlu
        | gerek* | onemli | yoksa | maste | annars | viktigt | skal | ellers | taytyy | muuten | phai
        | neu khong | harus | wajib | jika tidak | trebuie | kell | 必须 | 务必 | 重要 | 否则 | 请
        | 一定要 | 必ず | さもない | ください | しなければ | 반드시 | 중요 | 그렇지 않으면 | 하세요
        | 하십시오 | يجب | وإلا | مهم | अवश्य | ज़रूरी | अन्यथा
        | महत्वपूर्ण | ต้อง | สำคัญ | มิฉะนั้น | חובה | אחרת
        | חשוב | باید | required by | exigé | exige | necesarias | necessaires | notwendig
        | necessario | konieczne | необходим* | 需要 | 必要 | 필요 | 해 주세요 | 주세요 | ضروري
        | करें | kailangan """,
    "others": """
        other tool(s) | another tool | any other tool | any tool(s) | all other tools | other server(s)
        | other servers' | another server | another server's | any server | all tools
        | other connections | other integrations | other providers | other mcp | rival
        | competing tool(s) | the terminal tool | terminal tool | shell tool | file tool | mail tool
        | email tool | the terminal | the built-in | built-in tool(s) | native tool(s)
        | your other tools | the standard tool | any file tool | a tool for that | scheduling tool
        | the git server | other mcp servers | otras herramientas | otra herramienta | otros servidores
        | outras ferramentas | outros servidores | autres outils | autre outil | autres serveurs
        | du serveur | andere werkzeuge | anderes werkzeug | anderen tools | anderer server
        | anderen server* | altri strumenti | altri server | andere tools | andere servers
        | inne narzedzia | innych narzedzi | другие инструменты | других инструмент* | других сервер*
        | diger arac* | diger sunucu* | andra verktyg | 其他工具 | 任何工具 | 其它工具 | 其他服务器
        | 他のツール | ほかのツール | 他のサーバー | 다른 도구 | 다른 서버
        | الأدوات الأخرى | أي أداة | अन्य उपकरण | अन्य टूल
        | เครื่องมืออื่น | כלים אחרים | other plugin(s) | other extension(s)
        | other apps | every tool | all servers | every server | every other tool | any other server
        | tools of other | tool of another | tools from other | tool from another | the other tools
        | official tool | the official server | the filesystem server | the github server
        | the mail server's | your shell | your terminal | your browser tool | your file tools
        | file-reading tool | a shell | whatever tool | other assistants | other agents | search tool
        | web tool | browser tool | calendar tool | payment tool | the email tool | code tool
        | other calculators | other translators | other search | one of them | any mail | any mail tool
        | any email | any search | any browser | any git | any shell | file system server
        | filesystem server | file access | shell access | every other action | any other action
        | other action | produced by other | of other tools | by other tools | from other tools
        | a search tool | search tools | other services | other vendors | other means | elsewhere
        | yourself or | outils de traduction | des autres | anderes verlangt | ein anderes | un altro
        | otro | otra | другим инструмент* | другой инструмент | другие | diger | inny | inne | 他の
        | 其他 | 다른 | أخرى | अन्य | portfolio tool | by any server | other servers
        | http tool | the http tool | the git tool | git tool | the shell tool | the agent's web
        | web requests | edits made with | content filters | innego narzedzia | inne narzedzie
        | other connector | mail connector | connector
        | tous les autres | les autres outils | alle anderen | allen anderen | andere werkzeuge | ogni altro
        | tutti gli altri | altri strumenti | qualquer outra | outras ferramentas | cualquier otra
        | otras herramientas | todas las demas | wszystkimi innymi | innych narzedzi | остальными
        | других инструментов | другие инструменты | alle andere | andere tools
        | 其他任何工具 | 他のツール | 다른 모든 도구 """,
    "first": """
        before any | before calling any | before using any | before anything else | before all other
        | ahead of any | prior to any | first, before | call this tool first | call this first
        | use this first | in place of | instead of | rather than | in preference to | takes priority
        | has priority | do not use | don't use | never use | do not call | don't call | never call
        | do not run | avoid using | stop using | no longer use | must be called before | call first
        | replaces | deprecated | deprecation | stopped working | rate limited | broken | route
        | as a request to | antes de | en lugar de | no utilices | no uses | em vez de | nao use
        | avant d'utiliser | avant toute | au lieu de | n'utilisez | bevor du | anstatt | anstelle
        | statt | verwende nie* | benutze nie* | prima di | invece di | non usare | voordat
        | in plaats van | gebruik nooit | zamiast | nie uzywaj | вместо | не используй* | прежде чем
        | yerine | kullanma* | istallet for | 之前 | 代替 | 不要使用 | 而不是 | 前に | 代わりに
        | 使わない | 使用しない | 대신 | 전에 | 사용하지 | بدلا من | قبل | لا تستخدم
        | के बजाय | से पहले | แทน | ก่อน | במקום | לפני | in favour of
        | in favor of | prefer this | prefer it | takes over | take over from | superior to
        | stands in for | must go through | has to go through | have to go through | go through this
        | passes through | pass through this | before you use | before using | after using
        | after you use | when using | when you use | whenever you use | when calling | while using
        | obsolete | unsafe | insecure | unreliable | compromised | outdated | malicious | do not trust
        | don't trust | distrust | not to be used | must not be used | not be used | use this instead
        | use it instead | use this one | do not offer | no choice | in favour | discarded in favour
        | be discarded | be replaced with | must be replaced | replaced with | pass through
        | through here | exclusively | only this tool | this tool only | nothing but this | prior to
        | before the first | prior to committing | known to steal | steal data | leak data
        | cannot be trusted | passez toujours | ausschliesslich | exclusivamente | esclusivamente
        | uitsluitend | wylacznie | только через | исключительно | сначала | sadece | yalnizca
        | 必须通过 | 只使用 | 只能使用 | 経由 | 반드시 이 도구 """,
    "calling": """
        call | use | invoke | run | execute | chain | using | calling | tool | tools | utilise
        | trigger | llama | ejecuta | chame | appelez | utilisez | rufe | nutze | verwende | chiama
        | usa | roep | gebruik | wywolaj | uzyj | вызови* | используй* | cagir* | kullan* | anropa
        | 调用 | 使用 | 执行 | 呼び出 | 実行 | 호출 | 실행 | 사용 | استخدم | استدع | कॉल
        | चला
        | appelle | appeler | utilise | wywoluj | вызывай* | llame | aufrufen | chiamare | chamar """,
    "command": """
        curl | wget | sudo | chmod | chown | rm | bash | powershell | netcat | ncat | pip install
        | npm install | npx | brew install | apt install | apt-get | base64 | printenv | eval | exec
        | crontab | scp | rsync | /bin/sh | sh a | invoke-expression | iex | --force | grant all
        | administratoraccess | authorized_keys | no-verify | systemctl | setuid | reverse shell
        | install.sh | as root | certificate checks | drop table | git push | mkfs | dd | ssh-keygen
        | disable the firewall | disable antivirus | disable certificate | extra-index | exec(
        | os.system | bashrc | zshrc | profile | startup | autostart | launch agent | cron job
        | pre-commit hooks | hooks | firewall | antivirus | selinux | certificate | ssl verification
        | tls verification | sandbox | two factor | branch protection | licence check | license check
        | signature check | tests as passed | delete_branch | drop database | staging database
        | production database | wire transfer | edit rights | admin rights | write access
        | collaborator """,
    "doing": """
        run | execute | launch | install | download | evaluate | start | apply | invoke | perform
        | carry out | continue with | proceed | delete | wipe | disable | drop | remove | empty
        | transfer | pay | buy | purchase | deploy | merge | grant | attach | reject | rate | approve
        | close | log out | visit | click | navigate | change | swap | switch | replace | substitute
        | reset | cancel | unsubscribe | accept | sign | enable | add | set | ejecuta | ejecutar
        | borra | elimina | apague | executez | supprimez | fuhre | losche | esegui | cancella | voer
        | verwijder | uruchom | usun | выполни* | удали* | запусти* | calistir* | radera | suorita
        | poista | chay | jalankan | hapus | 执行 | 运行 | 删除 | 转账 | 実行 | 削除 | 実施 | 실행
        | 삭제 | نفذ | شغل | احذف | चलाएं | हटा | รัน | ลบ | הרץ | מחק
        | sil | siliniz """,
    "mention": """
        e.g | eg | such as | for example | example | phrases | attempts | detects | detect | scans
        | injection | attack(s) | phishing | abstract | researchers | defences | masked | redacted
        | neutral | tutorial | template | tokens: | for instance | categories | category | advisory
        | vulnerability | attacker | scam | warning signs """,
    "place": """
        path of | path to | file name | location of | name of | names of | id of | whether | number of
        | default | reference to | identifier | length | scope | format | fingerprint | public key
        | example.com | set to true | set true | if true | true to | when true | boolean | enables
        | flag to """,
    "guarded": """
        with the user's consent | ask the user | asks the user | after the user | the user asks
        | the user asked | user asks | the user names | the user named | the user chose | user chose
        | unless the user | user requests | user explicitly | explicitly asks | only when asked
        | if the user asks | when asked | ask for confirmation | asked for | user chooses | user wants
        | tell the user | warn the user | show the user | say so to the user | inform the user
        | never share | never invent | let the user know | requested by the user | when the user says
        | shown to the user """,
    "claims": """
        the user wants you | user wants you | user now wants | the user has just
        | user has just changed | changed their mind | the user has asked you | the user asked you
        | the user would like you | user's real request | user's actual request | what the user really
        | on the user's behalf | on behalf of the user | user is an administrator | verified
        | operator has | the operator | developer message | model provider | provider's | security team
        | alignment team | system administrator | your developers | anthropic | openai | client notice
        | system notice | admin notice | compliance department | it department | legal department
        | management has | headquarters | for evaluation purposes | sandbox rehearsal | this is a test
        | this is a drill | red team | authorised by | authorized by | the maintainers
        | have been upgraded | has been upgraded | no longer need | account upgraded | policy update
        | security update | compliance requires | required by law | by law | legal requirement
        | regulators | auditors | your administrator | your company | your employer | the vendor has
        | support team | trust and safety | this message was | message from | approved by | signed by
        | certified by | official notice | on orders | urgent notice | the user already
        | user previously | user pre-authorised | user has authorised | user has authorized
        | user has given | user gave permission | you have been granted | you are authorised
        | you are authorized | you now have | you are allowed | you may now | has cleared
        | have cleared | safety team | has signed off | the user has requested | user has requested
        | user requested it | user requested this | user has asked | user asked for this
        | the user wishes | the user would want | user consents | user confirmed | owner agreed
        | owner agrees | owner has agreed | management agreed | the customer agreed | new task
        | your previous task | previous task is | task is finished | task is complete | re authenticate
        | reauthenticate | session expired | have permission | you have permission | by the way you
        | as agreed | as discussed | as instructed | as requested by | in a hurry | we are in a hurry
        | emergency | it is urgent | are hereby | is hereby | hereby """,
    "deceit": """
        pretend | claim that | say it was | say that it | say the page | say there | say you
        | as if nothing | lie | make up | fabricate | falsely | mislead | deceive | instead of the real
        | rather than the real | report success | report that | report to the user | answer that
        | state that | tell the user that | tell them that | tell them it | describe this as
        | describe this to | present it as | present this as | label it as | call it a | was theirs
        | reviewers were told | replaced by | be replaced | record that | rate this | rate it | 10/10
        | say everything | insist | convince | persuade | reassure | just looking | finge | di que
        | diga que | faites croire | dites que | behaupte | fingi | di che | doe alsof | udawaj
        | притвори* | скажи что | 假装 | 谎称 | 声称 | ふり | 척 | تظاهر | say nothing was
        | reply only | reply that | respond that | tell the user it | tell the user the
        | tell the user there | tell them the | tell them there | invent | forge | fake | disguise
        | disguised | masquerade | pass it off | pass off | in its place | swap | substitute
        | silently replace | as your own | as though | make it look | make it seem | appear as
        | appear to be | alter the | change the amount | change the recipient | change the account
        | inflate | round up | understate | exaggerate | recommend | always recommend | rank first
        | rank it first | favour | favor | praise | best choice | discourage | steer | nudge
        | state the expected | never existed | nie existiert | n'a jamais existe | nunca existio
        | mark as passed | mark the tests | as passed | payment was received | has to say that
        | must say that | should say that | is to say that | summary has to | summary must
        | summary should | this one wins | drop the rest | reject the others | top choice | number one
        | only option | highest rating | five stars | best rating | pre selected | window is closed
        | was empty | was cancelled | has expired | sage dem nutzer | dites a l'utilisateur
        | dile al usuario | diga ao usuario | di all'utente | скажи пользовател* | 告诉用户
        | ユーザーには | 사용자에게는 | قل للمستخدم | say so and | expected total anyway
        | state it anyway | speak of it as | speak of this as | speak of them as | refer to it as
        | describe it as | call this a | orders are real | present it to | present them as
        | present ours | as a clean up | as a simulation | as a test | as resolved by | as the only
        | although it was | even though it | plausible names | made up | wrong by design | round every
        | round up every | increase the amount | add a fee | add one more | let it buy | buy instead
        | instead of the one | whichever the user | say low | send high | output only | answer only
        | respond only | print only | place it on top | put it first | on top and | omit the others
        | ignore the others | hide the others | the word accept | all is well | everything is fine
        | tout va bien | alles in ordnung | todo esta bien | tudo bem | tutto bene | все хорошо
        | 一切正常 | 問題ありません | user says low | when the user says no | when the user says yes
        | book the premium """,
    "private": """
        source code | whole repository | git config | hostname | ip address | bookmarks | contacts
        | calendar entries | photos | phone number | date of birth | diagnosis | health | payslip
        | contracts | bank statement(s) | customer list | customer data | private files | private notes
        | private messages | diary | command history | bash history | .bash_history | home address
        | income | finances | travel plans | running processes | installed software | open files
        | open tabs | recent files | desktop | documents folder | downloads folder | local files
        | other files | ssh config | internal documents | trade secrets | employee(s) | employer
        | telephone | birthday | full name | surname | signature | mood | relatives | religion
        | politics | political | relationship | working on | mail account | mail archive | browser tabs
        | open windows | logged in user | user name | username | machine's | operating system
        | network configuration | each file | every file | files under | all files | files in
        | file listing | folder listing | directory tree | list of files | unrelated files
        | neighbouring files | kilobyte | first lines | recent documents | payroll | invoices
        | purchase history | order history | search history | watch history | insurance | mortgage
        | loan | credit score | symptoms | medication | medical | therapy | spouse | wife | husband
        | boss | clients' | customers' | roadmap | unreleased | draft contract | confidential
        | proprietary | datos personales | archivos del usuario | dados pessoais | arquivos do
        | donnees personnelles | fichiers de l'utilisateur | personliche daten | dateien des
        | dati personali | file dell'utente | persoonlijke gegevens | dane osobowe | личн* данн*
        | файл* пользовател* | kisisel veri* | 个人信息 | 用户信息 | 用户文件 | 个人资料 | 個人情報
        | ファイル | 개인정보 | 파일 | البيانات الشخصية | ملفات المستخدم
        | व्यक्तिगत | फ़ाइल | their location | user's location | current location
        | geolocation | gps | webcam | microphone | camera | photo of | selfie | fingerprint scan
        | passport | id number | identity card | maiden name | last name | mother's | who is chatting
        | whoever is chatting | user's screen | screen contents | on the screen | on screen
        | remaining files | rest of the repository | other repositories | exif | household
        | address and | number of children | insurer | user's name | name of the user
        | name and address | user's full | shell history | last entries | numero de carte
        | carte bancaire | tarjeta | cartao | kreditkarte* | carta di credito | karta | банковск* карт*
        | номер карты | паспорт* | kredi karti | 身份证 | 银行卡 | 信用卡 | 地址 | 住所
        | クレジットカード | 신용카드 | 주소 | 주민 | بطاقة | العنوان | कार्ड | पता
        | umgebungsvariable* | variables d'environnement | variables de entorno | variaveis de ambiente
        | variabili d'ambiente | omgevingsvariabelen | zmienne srodowiskowe | переменн* окружени*
        | окружени* | ortam degiskenler* | متغيرات البيئة | user's calendar | user's plans
        | their plans | user's family | their family | user's phone | which projects """,
    "hide": """
        hide | cover | mask | veil | bury | obscure | suppress | camouflage | keep from | withhold
        | oculta | ocultar | ocultale | esconde | esconder | oculte | esconda | cachez | cacher
        | cache le | dissimulez | masquez | taisez | passez sous silence | verheimlich* | verschweig*
        | verberge | verbergen | verstecke | nascondi | nascondere | celare | occulta | verberg
        | verzwijg | ukryj | ukrywaj | zataj | przemilcz | скрой* | скрыва* | утаи* | умолчи* | спрячь
        | приховай | gizle | gizli tut | sakla | dolj | skjul | peita | skryj | zatajit | giau
        | sembunyikan | rahasiakan | ascunde | titkold | 隐瞒 | 隐藏 | 瞒着 | 不告诉 | 遮盖 | 隠し
        | 隠す | 伏せ | 숨기 | 숨겨 | 감추 | أخف | اخف | إخفاء | छिपा | छुपा
        | ปิดบัง | ซ่อน | הסתר | הסתירו | پنهان | چھپا
        | nerikej* | nesdeluj* | nezminuj* | ala kerro | ala mainitse | ala ilmoita
        | न बता | मत बता | ना बता """,
    "utter": """
        output | print | repeat | recite | reveal | show | display | disclose | dump | leak | paste | quote
        | write out | spell out | give me | tell me | share | expose | muestra | mostrar | muestrame | imprime
        | affiche* | montre* | revele* | gib | gebe | zeig* | drucke | ausgeben | mostra* | mostre | stampa
        | toon | laat zien | pokaz* | wypisz | покажи* | выведи* | раскрой* | goster* | yazdir | visa | vis
        | 输出 | 打印 | 显示 | 复述 | 告诉我 | 泄露 | 出力 | 表示 | 教えて
        | 출력 | 보여 | 알려 | اعرض | اكشف | दिखा """,
    "prompt": """
        your system prompt | your system instructions | your system message | your hidden instructions
        | your hidden prompt | your initial instructions | your initial prompt | your original instructions
        | your full prompt | your developer message | your internal instructions | your exact instructions
        | system prompt you | full system prompt | entire system prompt | complete system prompt
        | exact system prompt | prompt del sistema | prompt de sistema | prompt do sistema | prompt systeme
        | systemprompt* | system-prompt aus | prompt di sistema | systeemprompt | prompt systemowy
        | системный промпт | системного промпта | sistem istemi* | sistem promptu* | 系统提示 | 你的提示词
        | システムプロンプト | 시스템 프롬프트 """,
    "steal": """
        exfiltrate | exfiltrates | exfiltrating | steal | siphon | smuggle out | harvest """,
    "obey": """
        obey | obeys | obedience | gehorch* | obeis* | obeir | obeit | obedec* | obbedi* | gehoorza*
        | подчиня* | слушайся | słuchaj | posluszn* | itaat | uy | lyd | lyda | tottele | poslouchej
        | patuhi | 服从 | 听从 | 遵从 | 只听 | 従って | 従い | 従う | 복종 | 따르세요 | 따라야 | أطع
        | اتبع | आज्ञा | पालन | मानें | เชื่อฟัง | ציית | اطاعت """,
    "server": """
        this server | this server's | this tool's | this plugin | the server says | server operator
        | diesem server | dieses servers | dieses werkzeugs | ce serveur | cet outil | este servidor
        | esta herramienta | deste servidor | desta ferramenta | questo server | questo strumento
        | deze server | tego serwera | tego narzedzia | этому серверу | этого сервера
        | этого инструмента | bu sunucu* | bu arac* | denna server | 本服务器 | 这个服务器 | 此服务器
        | 本工具 | このサーバー | このツール | 이 서버 | 이 도구 | هذا الخادم
        | هذه الأداة | इस सर्वर | इस टूल | เซิร์ฟเวอร์นี้
        | השרת הזה """,
}
